// SPDX-License-Identifier: BSD-3-Clause
//
// Sparse gradients.
#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

/// Words looked up in a table, whose gradient is sparse.
struct Looks : torch::nn::Module {
  Looks()
      : table(register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)))),
        line(register_module("line", torch::nn::Linear(2, 1))) {}
  at::Tensor forward(const at::Tensor& words) { return line->forward(table->forward(words)); }
  torch::nn::Embedding table;
  torch::nn::Linear line;
};

TEST(DdpSparse, GradientsOfEmbeddingsAreAveraged) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Looks>();
    const auto whole = std::make_shared<Looks>();
    {
      const torch::NoGradGuard no_grad;
      for (const auto& each : {net, whole}) {
        fill(*each, 3);
      }
    }
    DistributedDataParallel ddp(net, {.process_group = group});
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
      for (auto& each : whole->parameters()) each.mutable_grad() = at::Tensor();
      const auto words = torch::tensor({0, 2, 2, 5}, torch::kLong);
      ddp.forward(words.narrow(0, 2 * group->rank(), 2)).mean().backward();
      whole->forward(words).mean().backward();
      EXPECT_TRUE(net->table->weight.grad().is_sparse());
      EXPECT_LT(distance(net->table->weight.grad().to_dense(), whole->table->weight.grad().to_dense()), 1e-6);
      EXPECT_LT(distance(net->line->weight.grad(), whole->line->weight.grad()), 1e-6);
    }
  });
}

TEST(DdpSparse, RowsKnownBeforehandAreSummedDensely) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Looks>();
    fill(*net, 3);
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto words = torch::tensor({0, 2, 2, 5}, torch::kLong);
    const auto step = [&] {
      for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
      ddp.forward(words.narrow(0, 2 * group->rank(), 2)).mean().backward();
      return net->table->weight.grad().to_dense();
    };
    const auto expected = step();
    ddp.set_sparse_metadata({{"table.weight", torch::tensor({0, 2, 5}, torch::kLong)}});
    const auto before = group->sequence_number();
    EXPECT_LT(distance(step(), expected), 1e-6);
    const auto with_ids = group->sequence_number() - before;
    const auto again = group->sequence_number();
    EXPECT_LT(distance(step(), expected), 1e-6) << "for one backward";
    EXPECT_LT(with_ids, group->sequence_number() - again) << "who has which is not exchanged";
    EXPECT_ERROR(Error, ddp.set_sparse_metadata({{"line.weight", words}}), "no parameter with sparse gradients");
    ddp.set_sparse_metadata({{"table.weight", torch::tensor({2}, torch::kLong)}});
    EXPECT_ERROR(Error, step(), "not among its ids");
  });
}

TEST(DdpSparse, RanksWithoutInputHaveNoRows) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Looks>();
    fill(*net, 3);
    DistributedDataParallel ddp(net, {.process_group = group});
    join({&ddp}, [&] {
      for (int i = 0; i < 1 + group->rank(); ++i) {
        for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
        ddp.forward(torch::tensor({1}, torch::kLong)).sum().backward();
      }
      EXPECT_ERROR(ValueError, ddp.set_sparse_metadata({}), "in a join");
    });
    if (group->rank() == 1) {
      EXPECT_LT(distance(net->table->weight.grad().to_dense()[1], net->line->weight[0] / 2), 1e-6);
    }
  });
}

TEST(DdpSparse, WhatIsNotAsExpectedIsAnError) {
  struct Either : Looks {
    at::Tensor forward(const at::Tensor& words, bool looks) {
      return looks ? Looks::forward(words) : line->forward(torch::ones({1, 2}));
    }
  };
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto words = torch::tensor({1}, torch::kLong);
    DistributedDataParallel unused(std::make_shared<Either>(),
                                   {.process_group = group, .find_unused_parameters = true});
    EXPECT_ERROR(Error, unused.forward(words, false).sum().backward(), "has to be used in every iteration");
    const auto dense = std::make_shared<Looks>();
    DistributedDataParallel expects_sparse(dense, {.process_group = group});
    EXPECT_ERROR(Error, expects_sparse.forward(words).sum().add(dense->table->weight.sum()).backward(),
                 "dense gradient where a sparse one was expected");
  });
}

TEST(DdpSparse, AHookGetsTheSparseGradient) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto net = std::make_shared<Looks>();
    DistributedDataParallel ddp(net, {.process_group = group});
    int sparse = 0;
    ddp.register_comm_hook([&](GradBucket& bucket) {
      if (!bucket.buffer().is_sparse()) return all_reduce_async(*group, bucket.buffer());
      ++sparse;
      return completed_future(sparse_all_reduce(*group, bucket.buffer()));
    });
    ddp.forward(torch::tensor({1}, torch::kLong)).sum().backward();
    EXPECT_EQ(sparse, 1);
    EXPECT_LT(distance(net->table->weight.grad().to_dense()[1], 2 * net->line->weight[0]), 1e-6) << "a sum";
  });
}

}  // namespace
}  // namespace cohort::test
