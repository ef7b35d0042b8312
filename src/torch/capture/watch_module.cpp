// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/watch_module.h"

#include <cohort/torch/ddp.h>
#include <torch/ordered_dict.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch/capture/tensor_metadata.h"
#include "torch/capture/watch_ddp.h"

namespace cohort::recording {

namespace {

using torch::nn::Module;
using Tensors = torch::OrderedDict<std::string, at::Tensor>;
using Modules = torch::OrderedDict<std::string, std::shared_ptr<Module>>;

// Module's public functions copy its dictionaries with all names, which takes longer than everything else here. Only an
// explicit instantiation may name private members.
template <class Tag, typename Tag::Type member>
struct Reveal {
  friend typename Tag::Type revealed(Tag /*tag*/) { return member; }
};
struct ParametersTag {
  using Type = Tensors Module::*;
  friend Type revealed(ParametersTag /*tag*/);
};
struct BuffersTag {
  using Type = Tensors Module::*;
  friend Type revealed(BuffersTag /*tag*/);
};
struct ChildrenTag {
  using Type = Modules Module::*;
  friend Type revealed(ChildrenTag /*tag*/);
};
template struct Reveal<ParametersTag, &Module::parameters_>;
template struct Reveal<BuffersTag, &Module::buffers_>;
template struct Reveal<ChildrenTag, &Module::children_>;

const auto& parameters_of(const Module& module) {
  return (module.*revealed(ParametersTag())).items();
}
const auto& buffers_of(const Module& module) {
  return (module.*revealed(BuffersTag())).items();
}
const auto& children_of(const Module& module) {
  return (module.*revealed(ChildrenTag())).items();
}

const c10::TensorImpl* address_of(const at::Tensor& tensor) noexcept {
  return tensor.unsafeGetTensorImpl();
}
const Module* address_of(const std::shared_ptr<Module>& module) noexcept {
  return module.get();
}

/// A dictionary of a module as it was. Whoever has it keeps the objects alive, so that no other one can have such an
/// address.
template <class Object>
class Entries {
 public:
  template <class Items>
  explicit Entries(const Items& items) {
    for (const auto& item : items) objects_.push_back(address_of(item.value()));
  }

  template <class Items>
  bool hold(const Items& items) const noexcept {
    if (items.size() != objects_.size()) return false;
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      if (address_of(items[i].value()) != objects_[i]) return false;
    }
    return true;
  }
  /// If they do not hold. `prefix`: of the items' names in the whole tree.
  template <class Items>
  std::string failure(const Items& items, std::string_view prefix, std::string_view kind) const {
    const auto count = std::min(items.size(), objects_.size());
    for (std::size_t i = 0; i < count; ++i) {
      if (address_of(items[i].value()) != objects_[i]) {
        return fmt::format("{}{} is another {}", prefix, items[i].key(), kind);
      }
    }
    if (items.size() > count) return fmt::format("{}{} was added", prefix, items[count].key());
    return fmt::format("{} had {} {}s and has {}", prefix.empty() ? "the module" : prefix.substr(0, prefix.size() - 1),
                       objects_.size(), kind, items.size());
  }

 private:
  std::vector<const Object*> objects_;
};

/// One module of the tree.
struct ModuleState {
  const Module* module;
  std::string prefix;  ///< of what is registered in it: "" or "fc1."
  bool is_training = module->is_training();
  Entries<c10::TensorImpl> parameters{parameters_of(*module)};
  Entries<c10::TensorImpl> buffers{buffers_of(*module)};
  Entries<Module> children{children_of(*module)};

  bool holds() const {
    return module->is_training() == is_training && parameters.hold(parameters_of(*module)) &&
           buffers.hold(buffers_of(*module)) && children.hold(children_of(*module));
  }
  std::string failure() const {
    if (module->is_training() != is_training) {
      const auto mode = [](bool trains) { return trains ? "training" : "evaluation"; };
      return fmt::format("{} was in {} mode and is in {} mode",
                         prefix.empty() ? "the module" : prefix.substr(0, prefix.size() - 1), mode(is_training),
                         mode(!is_training));
    }
    if (!parameters.hold(parameters_of(*module))) {
      return parameters.failure(parameters_of(*module), prefix, "parameter");
    }
    if (!buffers.hold(buffers_of(*module))) return buffers.failure(buffers_of(*module), prefix, "buffer");
    return children.failure(children_of(*module), prefix, "submodule");
  }
};

class ModuleSnapshot final : public WatchSnapshot {
 public:
  ModuleSnapshot(const Module& module, std::shared_ptr<const Module> keeps) {
    keeps_.push_back(std::move(keeps));
    add(module, "");
  }

  std::optional<std::string> change() const override {
    for (const auto& each : modules_) {
      if (!each.holds()) return each.failure();
    }
    for (const auto& each : wrappers_) {
      if (auto text = each.change()) return text;
    }
    for (const auto& each : buffers_) {
      if (!each.holds()) return each.failure();
    }
    return std::nullopt;
  }
  const std::vector<WatchedTensor>& parameters() const override { return parameters_; }

 private:
  void add(const Module& module, const std::string& prefix) {
    modules_.push_back({.module = &module, .prefix = prefix});
    if (const auto* const wrapper = dynamic_cast<const ddp::Wrapper*>(&module)) wrappers_.emplace_back(*wrapper);
    for (const auto& item : parameters_of(module)) {
      if (is_new(item.value())) parameters_.push_back({.name = prefix + item.key(), .tensor = item.value()});
    }
    for (const auto& item : buffers_of(module)) {
      if (is_new(item.value())) {
        buffers_.emplace_back(WatchedTensor{.name = prefix + item.key(), .tensor = item.value()}, metadata_);
      }
    }
    for (const auto& item : children_of(module)) {
      keeps_.push_back(item.value());
      if (item.value() != nullptr) add(*item.value(), prefix + item.key() + ".");
    }
  }
  bool is_new(const at::Tensor& tensor) {
    return tensor.defined() && seen_.insert(tensor.unsafeGetTensorImpl()).second;
  }

  std::vector<std::shared_ptr<const Module>> keeps_;
  std::vector<ModuleState> modules_;
  std::vector<DdpState> wrappers_;
  MetadataPool metadata_;
  std::vector<TensorGuard> buffers_;
  std::vector<WatchedTensor> parameters_;
  std::unordered_set<const c10::TensorImpl*> seen_;  ///< a tensor may be registered under several names
};

}  // namespace

std::unique_ptr<WatchSnapshot> snapshot_of(const Module& module, std::shared_ptr<const Module> keeps) {
  return std::make_unique<ModuleSnapshot>(module, std::move(keeps));
}

}  // namespace cohort::recording
