// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

namespace cohort::ddp {

/// The parameters that are reduced, in order of registration, each of them once.
struct Parameters {
  std::vector<at::Tensor> tensors{};
  std::vector<std::string> names{};
  std::vector<bool> expects_sparse{};  ///< whether the gradient is expected to be sparse

  std::size_t size() const { return tensors.size(); }
  /// Index and name, as messages show them.
  std::string describe(std::size_t index) const { return fmt::format("{} ({})", index, names[index]); }
};

}  // namespace cohort::ddp
