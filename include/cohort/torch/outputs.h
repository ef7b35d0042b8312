// SPDX-License-Identifier: BSD-3-Clause
//
// Finds the tensors in what a module's forward returns: tensors, packed sequences, optionals, tuples, pairs, vectors,
// arrays, maps, and any nesting of these. Your own struct has to list its tensors:
//
//   struct Output {
//     at::Tensor logits, hidden;
//     void visit_tensors(auto&& visit) { visit(logits); visit(hidden); }
//   };
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>

namespace cohort {

namespace detail {

template <class T>
struct IsTuple : std::false_type {};
template <class... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};
template <class A, class B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

struct AnyVisitor {
  template <class T>
  void operator()(T& /*part*/) const {}
};
template <class T>
concept VisitsItself = requires(T& value, AnyVisitor visit) { value.visit_tensors(visit); };

/// torch::nn::utils::rnn::PackedSequence, recognised by its members. Its data is the only tensor that has a gradient.
template <class T>
concept PackedSequenceLike = requires(const T& value) {
  { value.data() } -> std::same_as<const at::Tensor&>;
  { value.batch_sizes() } -> std::same_as<const at::Tensor&>;
};

template <class T>
concept MapLike = std::ranges::range<T> && requires { typename T::mapped_type; };

template <class T>
consteval bool is_traversable();

template <class T, std::size_t... I>
consteval bool is_traversable_tuple(std::index_sequence<I...> /*places*/) {
  return (is_traversable<std::tuple_element_t<I, T>>() && ...);
}

/// Whether all tensors in a T are found. Numbers, strings and the like hold none.
template <class T>
consteval bool is_traversable() {
  using U = std::remove_cvref_t<T>;
  if constexpr (std::same_as<U, at::Tensor> || std::is_arithmetic_v<U> || std::is_enum_v<U> || std::is_void_v<U> ||
                VisitsItself<U> || PackedSequenceLike<U>) {
    return true;
  } else if constexpr (IsOptional<U>::value) {
    return is_traversable<typename U::value_type>();
  } else if constexpr (IsTuple<U>::value) {
    return is_traversable_tuple<U>(std::make_index_sequence<std::tuple_size_v<U>>());
  } else if constexpr (MapLike<U>) {
    return is_traversable<typename U::mapped_type>();
  } else if constexpr (std::ranges::range<U>) {
    return is_traversable<std::ranges::range_value_t<U>>();
  } else {
    return false;
  }
}

}  // namespace detail

/// Calls `visit(at::Tensor&)` for each tensor in `value`, in order. Packed sequences, and parts that are not traversed,
/// are passed to `visit` as they are if it accepts their type.
template <class T, class Visit>
void visit_tensors(T& value, Visit&& visit) {
  using U = std::remove_cv_t<T>;
  if constexpr (std::same_as<U, at::Tensor>) {
    visit(value);
  } else if constexpr (detail::VisitsItself<U>) {
    value.visit_tensors([&](auto& part) { visit_tensors(part, visit); });
  } else if constexpr (detail::PackedSequenceLike<U>) {
    if constexpr (std::invocable<Visit&, U&>) {
      visit(value);
    } else {
      visit(const_cast<at::Tensor&>(value.data()));  // a member of `value`, which is not const
    }
  } else if constexpr (detail::IsOptional<U>::value) {
    if (value) visit_tensors(*value, visit);
  } else if constexpr (detail::IsTuple<U>::value) {
    std::apply([&](auto&... parts) { (visit_tensors(parts, visit), ...); }, value);
  } else if constexpr (detail::MapLike<U>) {
    for (auto& [key, part] : value) visit_tensors(part, visit);
  } else if constexpr (std::ranges::range<U>) {
    if constexpr (!std::is_arithmetic_v<std::ranges::range_value_t<U>>) {
      for (auto&& part : value) visit_tensors(part, visit);
    }
  } else if constexpr (std::invocable<Visit&, U&>) {
    visit(value);
  }
}

}  // namespace cohort
