// SPDX-License-Identifier: BSD-3-Clause
//
// An array of ranks of any number of dimensions, in row-major order: the ranks of a device mesh (mesh.h).
//
//   cohort::RankArray row{0, 1, 2, 3};                                // one dimension
//   cohort::RankArray grid{{0, 1}, {2, 3}};                           // two; and so on
//   cohort::RankArray same({2, 2}, std::vector<int>{0, 1, 2, 3});     // sizes and ranks
//   auto also = cohort::RankArray::copy_of(torch::arange(4));         // an integer tensor in host memory
#pragma once

#include <cohort/buffer.h>
#include <cohort/export.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace cohort {

class COHORT_API RankArray {
 public:
  /// One rank, for lists of ranks: `RankArray{0, 1}`.
  explicit(false) RankArray(std::integral auto rank) : ranks_{static_cast<int>(rank)} {}
  /// Throws ValueError if the rows have different sizes.
  RankArray(std::initializer_list<RankArray> rows);
  /// Throws ValueError unless there are as many ranks as the sizes say.
  RankArray(std::vector<std::int64_t> shape, std::vector<int> ranks);
  explicit(false) RankArray(const std::vector<int>& ranks);
  explicit(false) RankArray(const std::vector<std::vector<int>>& rows);
  /// Copies integers from host memory of any layout, such as a tensor (include cohort/torch/tensor.h for that). Throws
  /// ValueError for memory of a device and TypeError for other numbers.
  static RankArray copy_of(const ConstBuffer& integers);

  const std::vector<std::int64_t>& shape() const noexcept { return shape_; }
  /// In row-major order.
  const std::vector<int>& ranks() const noexcept { return ranks_; }

  bool operator==(const RankArray&) const = default;

 private:
  std::vector<std::int64_t> shape_;
  std::vector<int> ranks_;
};

/// "[[0, 1], [2, 3]]"; of a long array the beginning.
COHORT_API std::string to_string(const RankArray& ranks);

}  // namespace cohort
