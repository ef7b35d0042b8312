// SPDX-License-Identifier: BSD-3-Clause
//
// The arguments and the result of a captured step (capture.h), taken apart into tensors, which a replay gets and gives
// anew, and everything else, which is guarded. Steps take tensors, numbers, strings, groups, meshes and placements, and
// containers of these (vectors, tuples, optionals, maps); of a struct, what its visit_tensors visits (outputs.h):
//
//   auto scale = cohort::capture(
//       [](const std::map<std::string, torch::Tensor>& features, std::optional<double> factor) {
//         return features.at("image") * factor.value_or(1);
//       });
//
// Another number, another key or an optional without its value is another recording. Users include capture.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>
#include <cohort/torch/mesh.h>
#include <cohort/torch/outputs.h>
#include <cohort/torch/placement.h>

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <memory>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace cohort::detail {

/// What of an argument is no tensor: guarded by its text, and groups by identity. A call has one for the type of its
/// result, and then one for each argument.
struct GuardedConstant {
  std::string text{};
  std::string types{};  ///< of numbers: 2 and 2.0 are the same text
  std::vector<std::shared_ptr<const void>> groups{};
  std::size_t tensors = 0;  ///< how many tensors the argument consists of
  friend bool operator==(const GuardedConstant&, const GuardedConstant&) = default;
};

struct CapturedCall {
  std::vector<at::Tensor> tensors;
  std::vector<GuardedConstant> constants;
};

/// What the callable returned: its tensors, and the object they were in, without them.
struct CapturedResult {
  std::vector<at::Tensor> tensors;
  std::shared_ptr<void> container{};
};

/// All digits that tell a number from others.
template <class T>
std::string text_of_number(T number) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

/// So that no string looks like two.
inline std::string quoted(const std::string& string) {
  std::string text = "\"";
  for (const char each : string) {
    if (each == '"' || each == '\\') text += '\\';
    text += each;
  }
  return text += '"';
}

template <class T>
concept PartOfMesh = std::same_as<T, DeviceMesh> || std::derived_from<T, Placement> || std::same_as<T, Placements>;

/// Whether the parts of an argument are found.
template <class T>
consteval bool can_be_guarded() {
  using U = std::remove_cvref_t<T>;
  if constexpr (std::derived_from<U, at::Tensor> || std::convertible_to<U, std::string> || PartOfMesh<U> ||
                std::convertible_to<U, ProcessGroupPtr>) {
    return true;
  } else if constexpr (IsOptional<U>::value) {
    return can_be_guarded<typename U::value_type>();
  } else if constexpr (IsTuple<U>::value) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (can_be_guarded<std::tuple_element_t<I, U>>() && ...);
    }(std::make_index_sequence<std::tuple_size_v<U>>());
  } else if constexpr (MapLike<U>) {
    return can_be_guarded<typename U::key_type>() && can_be_guarded<typename U::mapped_type>();
  } else if constexpr (std::ranges::range<U> && !VisitsItself<U> && !PackedSequenceLike<U>) {
    return can_be_guarded<std::ranges::range_value_t<U>>();
  } else {
    return is_traversable<U>();
  }
}

/// Collects the tensors of the argument and says what it is made of otherwise: "2 tensors", "(3, none)".
template <class T>
void describe_argument(const T& argument, CapturedCall& call, GuardedConstant& constant) {
  using U = std::remove_cvref_t<T>;
  auto& text = constant.text;
  if constexpr (std::is_arithmetic_v<U> || std::is_enum_v<U>) constant.types += typeid(U).name();
  const auto add_parts = [&](const auto&... parts) {
    std::size_t count = 0;
    ((text += count++ == 0 ? "" : ", ", describe_argument(parts, call, constant)), ...);
  };
  if constexpr (std::derived_from<U, at::Tensor>) {
    call.tensors.push_back(argument);
    ++constant.tensors;
    text += "tensor";
  } else if constexpr (std::same_as<U, bool>) {
    text += argument ? "true" : "false";
  } else if constexpr (std::is_arithmetic_v<U>) {
    text += text_of_number(argument);
  } else if constexpr (std::is_enum_v<U>) {
    text += std::to_string(static_cast<long long>(argument));
  } else if constexpr (std::convertible_to<U, std::string>) {
    text += quoted(argument);
  } else if constexpr (std::convertible_to<U, ProcessGroupPtr>) {
    text += argument == nullptr ? "no group" : argument->id();
    constant.groups.push_back(argument);
  } else if constexpr (PartOfMesh<U>) {
    text += to_string(argument);
  } else if constexpr (IsOptional<U>::value) {
    argument ? describe_argument(*argument, call, constant) : void(text += "none");
  } else if constexpr (IsTuple<U>::value) {
    text += '(';
    std::apply(add_parts, argument);
    text += ')';
  } else if constexpr (MapLike<U>) {
    text += '{';
    for (const auto& [key, part] : argument) {
      describe_argument(key, call, constant);
      text += ": ";
      describe_argument(part, call, constant);
      text += ", ";
    }
    text += '}';
  } else if constexpr (VisitsItself<U> || PackedSequenceLike<U>) {
    auto parts = argument;  // handles; visiting gives references that may be written
    visit_tensors(parts, [&](at::Tensor& tensor) {
      describe_argument(tensor, call, constant);
      text += ", ";
    });
  } else if constexpr (std::same_as<std::ranges::range_value_t<U>, at::Tensor>) {
    for (const auto& each : argument) call.tensors.push_back(each);
    constant.tensors += std::ranges::size(argument);
    text += std::to_string(std::ranges::size(argument)) + " tensors";
  } else {
    text += '[';
    for (const auto& each : argument) {
      describe_argument(each, call, constant);
      text += ", ";
    }
    text += ']';
  }
}

template <class T>
void collect_argument(const T& argument, CapturedCall& call) {
  static_assert(can_be_guarded<T>(),
                "capture() cannot guard an argument of this type: pass tensors, numbers, strings, groups, meshes, "
                "placements or containers of these");
  if constexpr (std::convertible_to<T, std::string>) {
    call.constants.push_back({.text = argument});
  } else {
    describe_argument(argument, call, call.constants.emplace_back());
  }
}

/// Whether a result of this type consists of tensors alone.
template <class T>
consteval bool is_made_of_tensors() {
  using U = std::remove_cvref_t<T>;
  if constexpr (std::same_as<U, at::Tensor> || VisitsItself<U> || PackedSequenceLike<U>) {
    return true;
  } else if constexpr (IsOptional<U>::value) {
    return is_made_of_tensors<typename U::value_type>();
  } else if constexpr (IsTuple<U>::value) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (is_made_of_tensors<std::tuple_element_t<I, U>>() && ...);
    }(std::make_index_sequence<std::tuple_size_v<U>>());
  } else if constexpr (MapLike<U>) {
    return is_made_of_tensors<typename U::mapped_type>();
  } else if constexpr (std::ranges::range<U>) {
    return is_made_of_tensors<std::ranges::range_value_t<U>>();
  } else {
    return false;
  }
}

}  // namespace cohort::detail
