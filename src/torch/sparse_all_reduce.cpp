// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace cohort {

namespace {

/// Ranks may hold different numbers of rows; everything else must agree.
struct Shape {
  std::vector<std::int64_t> numbers;

  explicit Shape(const at::Tensor& tensor)
      : numbers{tensor.sparse_dim(), tensor.dense_dim(), static_cast<std::int64_t>(tensor.scalar_type())} {
    for (const auto size : tensor.sizes()) numbers.push_back(size);
  }
  friend bool operator==(const Shape&, const Shape&) = default;
};

}  // namespace

/// Gathers everybody's rows and adds up those that several have: as many bytes as the result can have, in two
/// exchanges after one of the sizes.
at::Tensor sparse_all_reduce(ProcessGroup& group, const at::Tensor& tensor, ReduceOp op, Timeout timeout) {
  if (op.kind() != ReduceOp::Kind::sum) {
    throw ValueError(fmt::format("sparse tensors are summed; {} is not defined for them", to_string(op.kind())));
  }
  if (tensor.layout() != at::kSparse) throw ValueError("sparse_all_reduce: the tensor is not sparse (COO)");
  const auto mine = tensor.coalesce();
  const auto indices = mine.indices().contiguous();
  const auto values = mine.values().contiguous();

  std::vector<std::int64_t> own = Shape(mine).numbers;
  own.push_back(indices.size(1));
  const auto texts = group.all_gather_bytes(
      std::string_view(reinterpret_cast<const char*>(own.data()), own.size() * sizeof(std::int64_t)),
      {.timeout = timeout});
  std::vector<std::int64_t> rows;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::vector<std::int64_t> theirs(texts[rank].size() / sizeof(std::int64_t));
    std::copy_n(texts[rank].data(), texts[rank].size(), reinterpret_cast<char*>(theirs.data()));
    rows.push_back(theirs.back());
    theirs.pop_back();
    if (theirs != Shape(mine).numbers) {
      throw MismatchError(
          fmt::format("rank {}'s sparse tensor has another shape, dtype or number of sparse dimensions", rank),
          {.group = group.id(), .op = "sparse_all_reduce", .rank = static_cast<int>(rank)});
    }
  }

  // One list of pieces, one row of dimension 0 for each index.
  const auto gather = [&](const at::Tensor& piece) {
    std::vector<at::Tensor> all;
    std::vector<Buffer> places;
    for (const auto count : rows) {
      auto sizes = piece.sizes().vec();
      sizes[0] = count;
      places.push_back(buffer_of(all.emplace_back(at::empty(sizes, piece.options()))));
    }
    group.all_gather(BufferList(places), const_buffer_of(piece), {.timeout = timeout, .stream = current_stream(piece)});
    return at::cat(all, 0);
  };
  const auto all_indices = gather(indices.t().contiguous());
  const auto all_values = gather(values);
  return at::sparse_coo_tensor(all_indices.t().contiguous(), all_values, tensor.sizes()).coalesce();
}

}  // namespace cohort
