// SPDX-License-Identifier: BSD-3-Clause
//
// Tensors in groups.
#include <ATen/ATen.h>
#include <cohort/torch/tensor.h>

#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

TEST(TensorBuffer, KnowsEveryTypeBothWays) {
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kChar, at::kByte, at::kShort, at::kInt,
                          at::kLong, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    EXPECT_EQ(scalar_type_from(dtype_from(type)), type);
    const auto tensor = at::zeros({2, 3}, type);
    const auto buffer = buffer_of(tensor);
    EXPECT_EQ(buffer.data(), tensor.data_ptr());
    EXPECT_EQ(buffer.bytes(), tensor.nbytes());
    EXPECT_EQ(to_string(buffer.sizes()), "[2, 3]");
  }
  EXPECT_ERROR(TypeError, dtype_from(at::kQInt8), "QInt8");
}

TEST(TensorBuffer, KeepsTheStorageAlive) {
  Buffer buffer;
  {
    const auto tensor = at::full({4}, 7.0, at::kDouble);
    buffer = buffer_of(tensor);
  }
  EXPECT_EQ(static_cast<double*>(buffer.data())[3], 7.0);
}

TEST(TensorBuffer, DenseMemoryInAnyOrderIsTakenAndGapsAreNot) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto image = at::ones({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
    group->all_reduce(image);
    EXPECT_TRUE(at::equal(image, at::full({2, 3, 4, 4}, 2.0F)));
    auto with_gaps = at::ones({4, 4}).slice(1, 0, 2);
    EXPECT_THROW(group->all_reduce(with_gaps), ValueError);
    EXPECT_ERROR(ValueError, buffer_of(at::Tensor()), "undefined");
    EXPECT_ERROR(ValueError, buffer_of(at::ones({2, 2}).to_sparse()), "sparse_all_reduce");
  });
}

TEST(TensorBuffer, TemporariesAreHandles) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto n = static_cast<double>(group->size());
    auto x = at::ones({4, 3}, at::kDouble);
    group->all_reduce(x.view(-1));
    EXPECT_TRUE(at::equal(x, at::full({4, 3}, n, at::kDouble)));
    group->all_reduce(x[1], {.op = ReduceOp::sum(), .async_op = true}).wait();
    EXPECT_EQ(x.sum().item<double>(), 9 * n + 3 * n * n) << "one row was reduced once more";

    x.fill_(group->rank());
    group->broadcast(x.narrow(0, 2, 2), {.root = 1});
    EXPECT_EQ(x.sum().item<double>(), 6.0 * (1 + group->rank()));

    x.fill_(1);
    group->all_reduce_coalesced({x.narrow(0, 0, 1), x.narrow(0, 1, 3)});
    EXPECT_TRUE(at::equal(x, at::full({4, 3}, n, at::kDouble)));

    auto all = at::zeros({2, 12}, at::kDouble);
    group->all_gather(all.view(-1), x.view(-1));
    group->all_gather({all[0], all[1]}, x.view({12}));
    group->all_gather(all.unbind(0), x.flatten());
    EXPECT_TRUE(at::equal(all, at::full({2, 12}, n, at::kDouble)));

    group->reduce_scatter(x.view(-1), all.view(-1));
    EXPECT_TRUE(at::equal(x, at::full({4, 3}, n * n, at::kDouble)));
    // The Work keeps the memory although nothing else does.
    const auto work = group->all_reduce(at::ones({1000}), {.async_op = true});
    work.wait();
    EXPECT_EQ(static_cast<const float*>(work.result()[0].data())[999], static_cast<float>(n));
  });
}

TEST(TensorBuffer, AnotherOrderOfElementsOnOneRankIsAMismatch) {
  for (const std::int64_t columns : {3, 100'000}) {
    with_torch_threads(2, [columns](const ProcessGroupPtr& group) {
      auto matrix = at::arange(2 * columns, at::kFloat).reshape({2, columns});
      if (group->rank() == 1) matrix = matrix.t().contiguous().t();  // the same values, by columns
      EXPECT_ERROR(MismatchError, group->all_reduce(matrix), "not in row-major order");
    });
    with_torch_threads(2, [columns](const ProcessGroupPtr& group) {
      auto matrix = at::arange(2 * columns, at::kFloat).reshape({columns, 2}).t();
      const auto twice = matrix * 2;
      group->all_reduce(matrix);  // the same order on both
      EXPECT_TRUE(at::equal(matrix, twice));
      auto other = at::zeros({columns, 2}).t();
      group->rank() == 0 ? group->send(matrix, 1) : group->recv(other, 0);
      EXPECT_TRUE(at::equal(other, group->rank() == 0 ? at::zeros({2, columns}) : twice));
      auto by_rows = at::zeros({2, columns});
      if (group->rank() == 1) {
        EXPECT_ERROR(MismatchError, group->recv(by_rows, 0), "not in row-major order");
      } else if (columns > 3) {
        EXPECT_ERROR(MismatchError, group->send(matrix, 1), "another size or type");
      } else {
        group->send(matrix, 1);  // a short message has left before anybody looks at it
      }
      // Within one call, and where a tensor is cut into pieces.
      std::vector<at::Tensor> all{at::zeros({2, columns}), at::zeros({2, columns})};
      EXPECT_ERROR(ValueError, group->all_gather(all, matrix), "different orders");
      auto joined = at::zeros({4, columns});
      EXPECT_ERROR(ValueError, group->all_gather(joined, matrix), "make it contiguous");
    });
  }
}

TEST(TensorFutureTest, ChainsStepsAfterAReduction) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    const auto x = at::full({5}, static_cast<double>(group->rank()));
    const auto half = all_reduce_async(*group, x).then([](const at::Tensor& sum) { return sum / 2; });
    EXPECT_TRUE(at::equal(half.value(), at::full({5}, 1.5)));
    const auto all = all_gather_async(*group, at::full({2}, group->rank(), at::kInt)).value();
    EXPECT_TRUE(at::equal(all, at::tensor({0, 0, 1, 1, 2, 2}, at::kInt).reshape({3, 2})));
  });
}

TEST(SparseAllReduce, AddsUpRowsThatSeveralHave) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto rank = group->rank();
    // Rank 0 has rows 0 and 2, rank 1 rows 2 and 3.
    const auto indices = rank == 0 ? at::tensor({0, 2}, at::kLong) : at::tensor({2, 3}, at::kLong);
    const auto tensor = at::sparse_coo_tensor(indices.unsqueeze(0), at::full({2, 3}, rank + 1.0), {5, 3});
    const auto sum = sparse_all_reduce(*group, tensor);
    auto expected = at::zeros({5, 3}, at::kDouble);
    expected[0] = 1;
    expected[2] = 3;
    expected[3] = 2;
    EXPECT_TRUE(at::equal(sum.to_dense(), expected));
    EXPECT_EQ(sum._nnz(), 3);
  });
}

TEST(SparseAllReduce, TakesRanksThatHaveNothing) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    const bool has = group->rank() == 1;
    const auto indices = at::zeros({1, has ? 1 : 0}, at::kLong);
    const auto sum = sparse_all_reduce(*group, at::sparse_coo_tensor(indices, at::ones({has ? 1 : 0, 2}), {4, 2}));
    EXPECT_EQ(sum.to_dense().sum().item<double>(), 2.0);
  });
}

TEST(SparseAllReduce, RefusesTimeoutsThatAreNotPositive) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto sparse = at::ones({2, 2}).to_sparse();
    for (const auto timeout : {std::chrono::milliseconds(0), std::chrono::milliseconds(-1)}) {
      EXPECT_ERROR(ValueError, sparse_all_reduce(*group, sparse, ReduceOp::sum(), timeout), "must be positive");
    }
    EXPECT_TRUE(at::equal(sparse_all_reduce(*group, sparse).to_dense(), at::full({2, 2}, 2.0F)));
  });
}

TEST(SparseAllReduce, RefusesOtherOperationsAndShapes) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto make = [&](std::int64_t rows) {
      return at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::ones({1, 2}), {rows, 2});
    };
    EXPECT_ERROR(ValueError, sparse_all_reduce(*group, make(4), ReduceOp::max()), "max");
    EXPECT_ERROR(ValueError, sparse_all_reduce(*group, at::ones({2})), "not sparse");
    EXPECT_ERROR(MismatchError, sparse_all_reduce(*group, make(4 + group->rank())), "another shape");
    EXPECT_ERROR(MismatchError, sparse_all_reduce(*group, make(4).to(group->rank() == 0 ? at::kFloat : at::kDouble)),
                 "dtype");
  });
}

}  // namespace
}  // namespace cohort::test
