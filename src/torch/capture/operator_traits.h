// SPDX-License-Identifier: BSD-3-Clause
//
// What the recorder has to know about an operator besides its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace cohort::recording {

struct OperatorTraits {
  bool is_view = false;                ///< its results show memory of its arguments, and it does nothing else
  bool is_query = false;               ///< it returns something that is no tensor, and does nothing else
  bool reads_elements = true;          ///< not only sizes and strides
  bool returns_uninitialized = false;  ///< such as empty()
  bool is_wait = false;                ///< wait_tensor
  bool is_random = false;              ///< draws from a generator
  bool is_of_libtorch = false;         ///< its schema says what it does, quietly_written aside
  /// Arguments that it writes, although neither the schema nor written_argument says so.
  std::vector<std::size_t> quietly_written{};
  std::optional<std::size_t> written_argument{};  ///< one that the schema does not declare as written
  std::optional<std::size_t> group_argument{};    ///< of the operators of torch/functional/operators.h: the group's id
};

const OperatorTraits& traits_of(const c10::OperatorHandle& op);

}  // namespace cohort::recording
