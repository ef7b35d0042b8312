// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/torch/rank_array.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

namespace cohort {

namespace {

/// How many ranks of an array texts show.
constexpr std::size_t shown_ranks = 64;

template <class T>
int rank_from(const std::byte* at) {
  T value{};
  std::memcpy(&value, at, sizeof(T));
  if (!std::in_range<int>(value)) throw ValueError(fmt::format("{} is not a rank", value));
  return static_cast<int>(value);
}

int rank_from(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::i8:
      return rank_from<std::int8_t>(at);
    case DType::u8:
      return rank_from<std::uint8_t>(at);
    case DType::i16:
      return rank_from<std::int16_t>(at);
    case DType::u16:
      return rank_from<std::uint16_t>(at);
    case DType::i32:
      return rank_from<std::int32_t>(at);
    case DType::u32:
      return rank_from<std::uint32_t>(at);
    case DType::i64:
      return rank_from<std::int64_t>(at);
    case DType::u64:
      return rank_from<std::uint64_t>(at);
    default:
      throw TypeError(fmt::format("an array of ranks has integers, not {}", to_string(dtype)));
  }
}

void write_rows(std::string& text, const RankArray& array, std::size_t dim, std::size_t& next) {
  if (dim == array.shape().size()) {
    text += std::to_string(array.ranks()[next++]);
    return;
  }
  text += '[';
  for (std::int64_t i = 0; i < array.shape()[dim]; ++i) {
    if (i > 0) text += ", ";
    if (next == shown_ranks) {
      text += "...";
      break;
    }
    write_rows(text, array, dim + 1, next);
  }
  text += ']';
}

}  // namespace

RankArray::RankArray(std::initializer_list<RankArray> rows) : shape_{static_cast<std::int64_t>(rows.size())} {
  for (const auto& row : rows) {
    if (row.shape_ != rows.begin()->shape_) throw ValueError("the rows of an array of ranks have different sizes");
    ranks_.insert(ranks_.end(), row.ranks_.begin(), row.ranks_.end());
  }
  if (rows.size() > 0) shape_.insert(shape_.end(), rows.begin()->shape_.begin(), rows.begin()->shape_.end());
}

RankArray::RankArray(std::vector<std::int64_t> shape, std::vector<int> ranks)
    : shape_(std::move(shape)), ranks_(std::move(ranks)) {
  const bool is_negative = std::ranges::any_of(shape_, [](std::int64_t each) { return each < 0; });
  const auto count = std::accumulate(shape_.begin(), shape_.end(), std::int64_t{1}, std::multiplies<>());
  if (is_negative || count != std::ssize(ranks_)) {
    throw ValueError(fmt::format("{} ranks do not fill an array of {}", ranks_.size(), fmt::join(shape_, " x ")));
  }
}

RankArray::RankArray(const std::vector<int>& ranks) : shape_{std::ssize(ranks)}, ranks_(ranks) {}

RankArray::RankArray(const std::vector<std::vector<int>>& rows)
    : shape_{std::ssize(rows), rows.empty() ? 0 : std::ssize(rows.front())} {
  for (const auto& row : rows) {
    if (row.size() != rows.front().size()) throw ValueError("the rows of an array of ranks have different sizes");
    ranks_.insert(ranks_.end(), row.begin(), row.end());
  }
}

RankArray RankArray::copy_of(const ConstBuffer& integers) {
  if (integers.device().type != DeviceType::cpu) {
    throw ValueError(fmt::format("the ranks of a mesh are read on the host, not on {}: copy them to cpu first",
                                 to_string(integers.device())));
  }
  const auto& sizes = integers.sizes();
  const auto& strides = integers.strides();
  const auto* const data = static_cast<const std::byte*>(integers.data());
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(integers.count()));
  for (std::int64_t index = 0; index < integers.count(); ++index) {
    std::int64_t offset = integers.is_contiguous() ? index : 0;
    auto rest = index;
    for (auto dim = sizes.size(); !integers.is_contiguous() && dim-- > 0;) {
      offset += rest % sizes[dim] * strides[dim];
      rest /= sizes[dim];
    }
    ranks.push_back(rank_from(integers.dtype(), data + offset * static_cast<std::int64_t>(size_of(integers.dtype()))));
  }
  return {std::vector<std::int64_t>(sizes.begin(), sizes.end()), std::move(ranks)};
}

std::string to_string(const RankArray& ranks) {
  std::string text;
  std::size_t next = 0;
  write_rows(text, ranks, 0, next);
  return text;
}

}  // namespace cohort
