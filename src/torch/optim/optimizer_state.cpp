// SPDX-License-Identifier: BSD-3-Clause
#include "torch/optim/optimizer_state.h"

#include <ATen/ATen.h>
#include <cohort/torch/checkpoint_error.h>
#include <cxxabi.h>

#include <fmt/format.h>

#include <concepts>
#include <cstdlib>
#include <string_view>
#include <tuple>
#include <typeinfo>

#include "torch/compat/state_key.h"
#include "torch/dtensor/known_parts.h"
#include "torch/optim/optimizer_fields.h"
#include "torch/optim/optimizer_kinds.h"
#include "torch/state/distributed_state.h"
#include "torch/state/value_text.h"

namespace cohort {

namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

/// LBFGS keeps lists as long as its history; a list may have gaps, so its length is not that of what is stored.
constexpr std::size_t longest_list = 100'000;

std::string class_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? name.get() : type.name();
}

/// Calls `body` with the kind that these options belong to.
template <class Body>
void with_options_kind(const OptimizerOptions& options, Body&& body) {
  const auto fits = [&]<class K>(const K& /*kind*/) { return typeid(options) == typeid(typename K::Options); };
  if (!with_optimizer_kind(fits, body)) {
    throw CheckpointError(
        fmt::format("options of class {}, which a checkpoint does not know", class_name(typeid(options))));
  }
}

/// std::optional or the one of older libtorch.
template <class T>
concept OptionalField = requires(const T& field) {
  field.has_value();
  *field;
};
template <class T>
concept TensorList = requires(const T& field) {
  { field[0] } -> std::convertible_to<at::Tensor>;
  { field.size() } -> std::convertible_to<std::size_t>;
} && !std::same_as<T, at::Tensor>;

template <class T>
void write_field(StateDict& to, const std::string& key, const T& field) {
  if constexpr (std::same_as<T, at::Tensor>) {
    if (field.defined()) to.set(key, field);
  } else if constexpr (OptionalField<T>) {
    if (field.has_value()) write_field(to, key, *field);
  } else if constexpr (TensorList<T>) {
    to.set(key + ".length", field.size());
    for (std::size_t i = 0; i < field.size(); ++i) write_field(to, fmt::format("{}.{}", key, i), field[i]);
  } else if constexpr (std::same_as<T, std::tuple<double, double>>) {
    to.set(key + ".0", std::get<0>(field));
    to.set(key + ".1", std::get<1>(field));
  } else {
    to.set(key, field);
  }
}

/// Reads the fields of one group or of one parameter. Tensors are put where the parameter is.
class FieldReader {
 public:
  /// `shaped`: tensors have the shape of the parameter.
  FieldReader(const StateDict& from, std::string prefix, const at::Tensor& parameter = {}, bool shaped = false)
      : from_(from), prefix_(std::move(prefix)), parameter_(parameter), shaped_(shaped) {}

  template <class T>
  void operator()(const std::string& name, T& field) const {
    read(prefix_ + name, field);
  }

 private:
  template <class T>
  void read(const std::string& key, T& field) const {
    if constexpr (std::same_as<T, at::Tensor>) {
      field = read_tensor(key);
    } else if constexpr (OptionalField<T>) {
      field = T();
      if (!from_.has(key) && !from_.has(key + ".length")) return;
      std::remove_cvref_t<decltype(*field)> value;
      read(key, value);
      field = std::move(value);
    } else if constexpr (TensorList<T>) {
      const auto length = from_.get<std::size_t>(key + ".length");
      if (length > longest_list) throw CheckpointError(fmt::format("'{}' is a list of {} tensors", key, length));
      T list;
      for (std::size_t i = 0; i < length; ++i) list.push_back(read_tensor(fmt::format("{}.{}", key, i)));
      field = std::move(list);
    } else if constexpr (std::same_as<T, std::tuple<double, double>>) {
      field = {from_.get<double>(key + ".0"), from_.get<double>(key + ".1")};
    } else {
      field = from_.get<T>(key);
    }
  }

  at::Tensor read_tensor(const std::string& key) const {
    const auto it = from_.tensors().find(key);
    if (it == from_.tensors().end()) return {};
    if (const bool saved_complex = it->second.is_complex();
        saved_complex != parameter_.is_complex() && (shaped_ || saved_complex)) {
      throw CheckpointError(fmt::format("the tensor '{}' is {}, and its parameter is {}", printable(key),
                                        c10::toString(it->second.scalar_type()),
                                        c10::toString(parameter_.scalar_type())));
    }
    if (!shaped_) return it->second.clone().to(parameter_.device());
    if (it->second.sizes() != dtensor::whole_of(parameter_).sizes()) {
      throw CheckpointError(fmt::format("the tensor '{}' does not have the shape of its parameter", key));
    }
    // In the memory format of the parameter, as the optimizer would make it.
    auto tensor = at::empty_like(parameter_, parameter_.options().dtype(it->second.scalar_type()).requires_grad(false));
    return tensor.copy_(saved_for(parameter_, it->second));
  }

  const StateDict& from_;
  std::string prefix_;
  at::Tensor parameter_;
  bool shaped_;
};

/// For each group its number of parameters, then for each parameter its number of dimensions and its sizes.
std::vector<std::int64_t> optimizer_shapes(const torch::optim::Optimizer& optimizer) {
  std::vector<std::int64_t> numbers;
  for (const auto& group : optimizer.param_groups()) {
    numbers.push_back(static_cast<std::int64_t>(group.params().size()));
    for (const auto& param : group.params()) {
      const auto whole = dtensor::whole_of(param);
      numbers.push_back(whole.dim());
      numbers.insert(numbers.end(), whole.sizes().begin(), whole.sizes().end());
    }
  }
  return numbers;
}

std::string group_prefix(std::size_t group) {
  return fmt::format("groups.{}.", group);
}
constexpr std::string_view state_start = "state.";
std::string state_prefix(std::size_t parameter) {
  return fmt::format("{}{}.", state_start, parameter);
}

}  // namespace

void require_known_optimizer(const torch::optim::Optimizer& optimizer) {
  const auto fits = [&]<class K>(const K& /*kind*/) {
    return typeid(optimizer) == typeid(typename K::Optimizer) || typeid(optimizer) == typeid(typename K::Own);
  };
  if (with_optimizer_kind(fits, [](const auto& /*kind*/) {})) return;
  throw CheckpointError(fmt::format(
      "an optimizer of class {}, whose state a checkpoint does not know: give it the members StateDict state_dict() "
      "const and void load_state_dict(const StateDict&) (cohort/torch/state_dict.h)",
      class_name(typeid(optimizer))));
}

StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer, const torch::optim::Optimizer& holder) {
  StateDict result;
  with_options_kind(optimizer.defaults(), [&]<class K>(const K& kind) {
    result.set("class", std::string(kind.name));
    result.set("shapes", optimizer_shapes(optimizer));
    std::size_t group_number = 0;
    std::size_t number = 0;
    for (const auto& group : optimizer.param_groups()) {
      const auto prefix = group_prefix(group_number++);
      each_field(static_cast<const typename K::Options&>(group.options()),
                 [&](const char* name, const auto& field) { write_field(result, prefix + name, field); });
      for (const auto& parameter : group.params()) {
        const auto here = state_prefix(number++);
        const auto it = holder.state().find(state_key(parameter));
        if (it == holder.state().end()) continue;
        const OptimizerParamState& state = *it->second;
        if (typeid(state) != typeid(typename K::State)) {
          throw CheckpointError(
              fmt::format("state of class {} in an optimizer of class {}", class_name(typeid(state)), kind.name));
        }
        result.set(here + "saved", true);  // also without a tensor, as SGD's before its momentum
        each_field(static_cast<const typename K::State&>(state), [&](const char* name, const auto& field) {
          if constexpr (std::same_as<std::remove_cvref_t<decltype(field)>, at::Tensor>) {
            if (field.defined()) result.set(here + name, dtensor::whole_of(field, parameter));
          } else {
            write_field(result, here + name, field);
          }
        });
      }
    }
  });
  return result;
}

std::function<at::Tensor(const std::string&)> parameters_by_key(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return [all](const std::string& key) -> at::Tensor {
    if (!key.starts_with(state_start)) return {};
    const auto rest = std::string_view(key).substr(state_start.size());
    const auto number = text_to_unsigned(rest.substr(0, rest.find('.')));
    return number.has_value() && *number < all.size() ? dtensor::whole_of(all[*number]) : at::Tensor();
  };
}

void check_optimizer_state(const torch::optim::Optimizer& optimizer, const StateDict& state) {
  with_options_kind(optimizer.defaults(), [&](const auto& kind) {
    if (const auto there = state.get<std::string>("class"); there != kind.name) {
      throw CheckpointError(
          fmt::format("the optimizer there is {}, and the one here is {}", printable(there), kind.name));
    }
  });
  // Parameters are identified by their order, so a mismatch would only show in the middle of a step.
  if (state.get<std::vector<std::int64_t>>("shapes") != optimizer_shapes(optimizer)) {
    throw CheckpointError("the optimizer there had other parameters, in groups, number, order or shape");
  }
}

LoadedOptimizerState::LoadedOptimizerState(const torch::optim::Optimizer& optimizer, const StateDict& state,
                                           const std::function<bool(const at::Tensor&)>& wanted) {
  check_optimizer_state(optimizer, state);
  with_options_kind(optimizer.defaults(), [&]<class K>(const K& /*kind*/) {
    constexpr bool shaped = !std::is_same_v<typename K::Optimizer, torch::optim::LBFGS>;
    std::size_t group_number = 0;
    std::size_t number = 0;
    for (const auto& group : optimizer.param_groups()) {
      auto options = group.options().clone();
      each_field(static_cast<typename K::Options&>(*options), FieldReader(state, group_prefix(group_number++)));
      options_.push_back(std::move(options));
      for (const auto& parameter : group.params()) {
        const auto here = state_prefix(number++);
        if (!state.has(here + "saved") || (wanted && !wanted(parameter))) continue;
        auto own = std::make_unique<typename K::State>();
        each_field(*own, FieldReader(state, here, parameter, shaped));
        states_.emplace_back(parameter, std::move(own));
      }
    }
  });
}

void LoadedOptimizerState::install(torch::optim::Optimizer& groups, torch::optim::Optimizer& holder) {
  for (std::size_t i = 0; i < options_.size(); ++i) groups.param_groups()[i].set_options(std::move(options_[i]));
  holder.state().clear();
  for (auto& [parameter, state] : states_) holder.state()[state_key(parameter)] = std::move(state);
}

}  // namespace cohort
