// SPDX-License-Identifier: BSD-3-Clause
//
// What surrounds the averages: buffers, hooks, sparse gradients, mixed precision, logs.
#include <cohort/torch/hooks.h>
#include <cohort/torch/zero_optimizer.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

using ::testing::HasSubstr;

// --- buffers

struct CountsImpl : torch::nn::Module {
  CountsImpl() {
    weight = register_parameter("weight", torch::ones({1}, torch::kDouble));
    count = register_buffer("count", torch::zeros({1}, torch::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return weight * x + named_buffers()["count"]; }
  at::Tensor weight, count;
};
TORCH_MODULE(Counts);

TEST(DdpBuffersOf, RankZeroGoToAllBeforeForward) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    Counts net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::ones({1}, torch::kDouble);
    net->count.fill_(group->rank() + 5.0);
    ddp.forward(x).sum().backward();
    EXPECT_EQ(net->count.item<double>(), 5.0);

    Counts alone;
    DistributedDataParallel without(alone, {.process_group = group, .broadcast_buffers = false});
    alone->count.fill_(group->rank() + 5.0);
    without.forward(x).sum().backward();
    EXPECT_EQ(alone->count.item<double>(), group->rank() + 5.0);
  });
}

TEST(DdpBuffersOf, RanksBeginEqualAndStayTheirOwnWhereForwardSendsNone) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Counts net;
    net->count.fill_(group->rank() + 5.0);
    DistributedDataParallel ddp(net, {.process_group = group, .forward_sync_buffers = false});
    EXPECT_EQ(net->count.item<double>(), 5.0) << "construction sends them";
    net->count.fill_(group->rank() + 7.0);
    ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward();
    EXPECT_EQ(net->count.item<double>(), group->rank() + 7.0);

    Counts later;
    later->count.fill_(group->rank() + 5.0);
    DistributedDataParallel only_forward(
        later, {.process_group = group, .broadcast_buffers = false, .forward_sync_buffers = true});
    EXPECT_EQ(later->count.item<double>(), group->rank() + 5.0);
    only_forward.forward(torch::ones({1}, torch::kDouble)).sum().backward();
    EXPECT_EQ(later->count.item<double>(), 5.0);
  });
}

// A registered buffer stays the same tensor in libtorch; what it holds may be replaced.
TEST(DdpBuffersOf, ModulesThatGiveThemNewMemoryAreFoundAgain) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Counts net;
    DistributedDataParallel ddp(net, {.process_group = group});
    net->count.set_data(torch::full({1}, group->rank() + 3.0, torch::kDouble));
    ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward();
    EXPECT_EQ(net->named_buffers()["count"].item<double>(), 3.0);
  });
}

TEST(DdpBuffersOf, ForwardWithoutGradientsCommunicatesNothing) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Counts net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::ones({1}, torch::kDouble);
    ddp.forward(x).sum().backward();
    const auto before = group->sequence_number();
    {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i <= group->rank(); ++i) ddp.forward(x);  // not even equally often
    }
    EXPECT_EQ(group->sequence_number(), before);
    net->count.fill_(group->rank());
    ddp.sync_buffers();
    EXPECT_EQ(net->count.item<double>(), 0.0) << "by hand";
  });
}

// A target network's forward, say, between the other forward and its backward.
TEST(DdpBuffersOf, AForwardWithoutGradientsLeavesAPendingBackwardAlone) {
  for (const bool is_static : {false, true}) {
    with_torch_threads(2, [is_static](const ProcessGroupPtr& group) {
      Scale net;
      DistributedDataParallel ddp(net, {.process_group = group, .static_graph = is_static});
      const auto x = torch::full({1}, group->rank() + 1.0, torch::kDouble);
      for (int i = 0; i < 4; ++i) {
        ddp.zero_grad();
        const auto y = ddp.forward(x);
        {
          const torch::NoGradGuard no_grad;
          ddp.forward(x);
        }
        y.sum().backward();
        EXPECT_EQ(grad_of(net->weight), 1.5);
      }
    });
  }
}

TEST(DdpBuffersOf, ForwardsThatDoNotSynchroniseSendNone) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Counts net;
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto x = torch::ones({1}, torch::kDouble);
    net->count.fill_(group->rank() + 5.0);
    {
      const auto local = ddp.no_sync();
      ddp.forward(x).sum().backward();
    }
    EXPECT_EQ(net->count.item<double>(), group->rank() + 5.0);
    ddp.forward(x).sum().backward();
    EXPECT_EQ(net->count.item<double>(), 5.0);
  });
}

TEST(DdpBuffersOf, AHookRunsBeforeOrAfterForward) {
  struct Notes : torch::nn::Module {
    Notes() {
      weight = register_parameter("weight", torch::ones({1}, torch::kDouble));
      register_buffer("some", torch::ones({1}, torch::kDouble));
    }
    at::Tensor forward(const at::Tensor& x) {
      has_run = true;
      return weight * x;
    }
    at::Tensor weight;
    bool has_run = false;
  };
  for (const auto when : {BufferSync::before_forward, BufferSync::after_forward}) {
    with_torch_threads(1, [when](const ProcessGroupPtr& group) {
      const auto net = std::make_shared<Notes>();
      DistributedDataParallel ddp(net, {.process_group = group});
      std::vector<bool> ran_before;
      ddp.register_buffer_hook(
          [&](const std::map<std::string, at::Tensor>& /*buffers*/) {
            ran_before.push_back(net->has_run);
            return std::vector<Future<void>>{};
          },
          when);
      ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward();
      EXPECT_THAT(ran_before, ::testing::ElementsAre(when == BufferSync::after_forward));
    });
  }
}

TEST(DdpBuffersOf, AHookMayReplaceTheBroadcast) {
  for (const auto when : {BufferSync::before_forward, BufferSync::after_forward}) {
    with_torch_threads(2, [when](const ProcessGroupPtr& group) {
      Counts net;
      DistributedDataParallel ddp(net, {.process_group = group});
      ddp.register_buffer_hook(
          [&](const std::map<std::string, at::Tensor>& buffers) {
            const auto& count = buffers.at("count");
            return std::vector<Future<void>>{reduced(*group, count).then([](const at::Tensor&) {})};
          },
          when);
      net->count.fill_(group->rank() + 1.0);
      ddp.forward(torch::ones({1}, torch::kDouble)).sum().backward();
      EXPECT_EQ(net->count.item<double>(), 3.0) << "awaited when backward has ended";
    });
  }
}

// --- hooks

TEST(DdpHook, GetsTheUndividedBucketAndItsResultIsUsed) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Mlp net;
    DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.0001});
    std::vector<std::int64_t> elements;
    ddp.register_comm_hook([&](GradBucket& bucket) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < bucket.gradients().size(); ++i) {
        EXPECT_EQ(bucket.gradients()[i].sizes(), bucket.parameters()[i].sizes());
        sum += bucket.gradients()[i].numel();
      }
      EXPECT_EQ(sum, bucket.buffer().numel());
      elements.push_back(sum);
      return reduced(*group, bucket.buffer()).then([](const at::Tensor& all) { return all * 10; });
    });
    EXPECT_EQ(ddp.logging_data().text("comm_hook"), "custom");
    EXPECT_ERROR(Error, ddp.register_comm_hook([](GradBucket& bucket) { return ready(bucket.buffer()); }), "already");
    EXPECT_ERROR(TypeError, ddp.register_comm_hook(nullptr), "no hook");
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      ddp.forward(torch::ones({1, 4}, torch::kDouble)).sum().backward();
      EXPECT_EQ(net->linears.back()->bias.grad()[0].item<double>(), 20.0) << "a sum, times ten";
    }
    EXPECT_EQ(std::accumulate(elements.end() - 3, elements.end(), std::int64_t{0}), elements.front());
  });
}

TEST(DdpHook, WhatIsWrongWithItComesOutOfBackward) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto x = torch::ones({1}, torch::kDouble);
    DistributedDataParallel throws(Scale(), {.process_group = group});
    throws.register_comm_hook([](GradBucket&) -> TensorFuture { throw ValueError("not today"); });
    EXPECT_ERROR(ValueError, throws.forward(x).sum().backward(), "not today");
    DistributedDataParallel wrong(Scale(), {.process_group = group});
    wrong.register_comm_hook([](GradBucket&) { return ready(torch::ones({5})); });
    EXPECT_ERROR(Error, wrong.forward(x).sum().backward(), "gave back 5 elements");
  });
}

TEST(Ddp, CommunicationOverlapsBackwardInOrder) {
  for (const bool is_static : {false, true}) {
    with_torch_threads(2, [is_static](const ProcessGroupPtr& group) {
      Mlp net(64, 6);
      DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.01, .static_graph = is_static});
      std::vector<std::size_t> order;
      std::vector<bool> first_layer_was_there;
      ddp.register_comm_hook([&](GradBucket& bucket) {
        order.push_back(bucket.index());
        first_layer_was_there.push_back(net->linears[0]->weight.grad().defined());
        return reduced(*group, bucket.buffer());
      });
      for (int i = 0; i < 4; ++i) {
        for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
        order.clear();
        first_layer_was_there.clear();
        ddp.forward(random_batch(i, {4, 4})).sum().backward();
        if (i == 0) {
          EXPECT_TRUE(first_layer_was_there.front()) << "one bucket, and a static graph is learnt first";
        }
      }
      ASSERT_GE(order.size(), 3U);
      EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
      EXPECT_FALSE(first_layer_was_there.front()) << "while the first layer's gradient was still to come";
    });
  }
}

TEST(DdpHook, ThoseOfTheLibraryAverage) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const bool is_narrow : {false, true}) {
      Scale net(1, 4);
      net->to(torch::kFloat);
      DistributedDataParallel ddp(net, {.process_group = group});
      ddp.register_comm_hook(is_narrow ? hooks::bf16_compress(group) : hooks::allreduce(group));
      EXPECT_THAT(ddp.logging_data().text("comm_hook"), HasSubstr(is_narrow ? "bf16" : "allreduce"));
      for (int i = 0; i < 3; ++i) {
        ddp.zero_grad();
        ddp.forward(torch::full({4}, static_cast<float>(group->rank() + 1))).sum().backward();
        EXPECT_TRUE(torch::equal(net->weight.grad(), torch::full({4}, 1.5F)));
      }
    }
  });
}

TEST(DdpFused, OptimizersStepAsOneAfterBackwardWould) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Mlp fused_net;
    Mlp plain;
    fill(*fused_net, 1);
    fill(*plain, 1);
    DistributedDataParallel a(fused_net, {.process_group = group, .bucket_cap_mb = 0.0001});
    DistributedDataParallel b(plain, {.process_group = group});
    a.register_fused_optimizer(make_functional(fused::AdamW{.lr = 0.01}), {}, true);
    EXPECT_ERROR(Error, a.register_fused_optimizer(make_functional(fused::SGD{})), "already");
    EXPECT_ERROR(Error, a.register_comm_hook(hooks::allreduce(group)), "fused");
    torch::optim::AdamW optimizer(b.parameters(), torch::optim::AdamWOptions(0.01));
    for (int i = 0; i < 10; ++i) {
      const auto x = random_batch(10 * i + group->rank(), {3, 4});
      a.forward(x).pow(2).mean().backward();
      optimizer.zero_grad();
      b.forward(x).pow(2).mean().backward();
      optimizer.step();
      EXPECT_FALSE(fused_net->parameters()[0].grad().defined()) << "used and gone";
    }
    for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
      EXPECT_LT(distance(fused_net->parameters()[i], plain->parameters()[i]), 1e-12);
    }
  });
}

TEST(DdpFused, ZeroStepsBucketByBucket) {
  for (const int size : {1, 2, 3}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      Mlp sharded;
      Mlp plain;
      fill(*sharded, 1);
      fill(*plain, 1);
      DistributedDataParallel a(sharded, {.process_group = group, .bucket_cap_mb = 0.0001});
      DistributedDataParallel b(plain, {.process_group = group});
      a.register_zero_step(std::make_shared<ZeroOptimizer<torch::optim::AdamW>>(
          a.parameters(), torch::optim::AdamWOptions(0.01), group));
      EXPECT_ERROR(Error, a.register_fused_optimizer(make_functional(fused::SGD{})), "already");
      torch::optim::AdamW optimizer(b.parameters(), torch::optim::AdamWOptions(0.01));
      for (int i = 0; i < 10; ++i) {
        const auto x = random_batch(10 * i + group->rank(), {3, 4});
        a.zero_grad();
        a.forward(x).pow(2).mean().backward();
        optimizer.zero_grad();
        b.forward(x).pow(2).mean().backward();
        optimizer.step();
      }
      for (std::size_t i = 0; i < plain->parameters().size(); ++i) {
        EXPECT_TRUE(torch::equal(sharded->parameters()[i], plain->parameters()[i])) << i;
      }
      DistributedDataParallel other(Mlp(), {.process_group = group});
      const auto stranger = std::make_shared<ZeroOptimizer<torch::optim::SGD>>(plain->parameters(),
                                                                               torch::optim::SGDOptions(0.01), group);
      EXPECT_THROW(other.register_zero_step(stranger), ValueError);
    });
  }
}

TEST(DdpFused, ASubsetOfTheParametersMayBeChosen) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group});
    ddp.register_fused_optimizer(make_functional(fused::SGD{.lr = 1}), {net->a});
    ddp.forward(torch::full({1}, group->rank() + 1.0, torch::kDouble), true).sum().backward();
    EXPECT_EQ(net->a.item<double>(), -0.5);
    EXPECT_EQ(net->b.item<double>(), 1.0);
    DistributedDataParallel other(Branches(), {.process_group = group});
    EXPECT_ERROR(ValueError, other.register_fused_optimizer(make_functional(fused::SGD{}), {net->a}),
                 "does not reduce");
  });
}

// --- sparse gradients

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
    EXPECT_ERROR(Error, unused.forward(words, false).sum().backward(), "must be, in every iteration");
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
      if (!bucket.buffer().is_sparse()) return reduced(*group, bucket.buffer());
      ++sparse;
      return ready(sparse_all_reduce(*group, bucket.buffer()));
    });
    ddp.forward(torch::tensor({1}, torch::kLong)).sum().backward();
    EXPECT_EQ(sparse, 1);
    EXPECT_LT(distance(net->table->weight.grad().to_dense()[1], 2 * net->line->weight[0]), 1e-6) << "a sum";
  });
}

// --- where buckets lie

/// One rank that counts what is allocated from it.
class Allocates final : public Backend {
 public:
  Allocates() : Backend("allocates", 0, 1) {}
  Capabilities capabilities() const override { return {.group_memory = true, .premul_sum = true}; }
  void all_reduce(const Reduction& /*reduction*/, Call& /*call*/) override {}
  void broadcast(Bytes /*data*/, int /*root*/, Call& /*call*/) override {}
  void all_gather(ConstBytes in, std::span<const Bytes> outs, Call& /*call*/) override {
    std::copy(in.begin(), in.end(), outs[0].begin());
  }
  GroupMemory allocate(std::size_t bytes) override {
    ++allocations;
    auto memory = std::make_shared<std::vector<std::byte>>(bytes);
    return {memory, memory->data(), bytes};
  }
  int allocations = 0;
};

TEST(DdpMemory, BucketsAreInWhatTheBackendAllocates) {
  const auto backend = std::make_shared<Allocates>();
  const auto group = std::make_shared<ProcessGroup>(std::make_shared<HashStore>(), 0, 1);
  group->add_backend(DeviceType::cpu, backend);
  DistributedDataParallel ddp(Mlp(), {.process_group = group});
  EXPECT_EQ(backend->allocations, 1);
  ::setenv("DDP_DISABLE_COMM_MEM", "1", 1);
  const DistributedDataParallel without(Mlp(), {.process_group = group});
  EXPECT_EQ(backend->allocations, 1);
  ::unsetenv("DDP_DISABLE_COMM_MEM");
}

/// One of two ranks, whose sums are its own values: what was divided before the sum can be seen.
class CannotScale final : public Backend {
 public:
  CannotScale() : Backend("cannot_scale", 0, 2) {}
  Capabilities capabilities() const override { return {}; }
  void all_reduce(const Reduction& /*reduction*/, Call& /*call*/) override {}
};

TEST(Ddp, GradientsAreDividedBeforeTheSumWhereTheBackendCannot) {
  for (const bool is_batched : {false, true}) {
    for (const bool is_view : {false, true}) {
      const auto group = std::make_shared<ProcessGroup>(std::make_shared<HashStore>(), 0, 2);
      group->add_backend(DeviceType::cpu, std::make_shared<CannotScale>());
      Mlp net;
      fill(*net, 1);
      Mlp alone;
      fill(*alone, 1);
      DistributedDataParallel ddp(net, {.process_group = group,
                                        .gradient_as_bucket_view = is_view,
                                        .batched_grad_copy = is_batched,
                                        .init_sync = false});
      ddp.forward(random_batch(1, {3, 4})).sum().backward();
      alone->forward(random_batch(1, {3, 4})).sum().backward();
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_LT(distance(net->parameters()[i].grad() * 2, alone->parameters()[i].grad()), 1e-12);
      }
    }
  }
}

// --- logging

TEST(DdpLog, ShowsWhenEachBucketWasReduced) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Mlp(), {.process_group = group, .bucket_cap_mb = 0.0001});
    ddp.record_timeline();
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      ddp.forward(random_batch(i, {3, 4})).sum().backward();
    }
    const auto json = ddp.timeline_json();
    for (const auto* const each :
         {"forward", "backward", "bucket 0", "bucket 1", "bucket 2", "communication", "layer0.weight"}) {
      EXPECT_THAT(json, HasSubstr(each));
    }
  });
}

TEST(DdpLog, TellsHowItWasMadeAndHowItGoes) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Mlp(), {.process_group = group, .bucket_cap_mb = 2});
    const auto made = ddp.logging_data();
    EXPECT_EQ(made.integer("world_size"), 2);
    EXPECT_EQ(made.integer("rank"), group->rank());
    EXPECT_EQ(made.integer("bucket_cap_bytes"), 2 << 20);
    EXPECT_EQ(made.integer("num_parameter_tensors"), 6);
    EXPECT_EQ(made.integer("total_parameter_size_bytes"), 1040);
    EXPECT_EQ(made.integer("output_device"), -1);
    EXPECT_EQ(made.integer("gradient_as_bucket_view"), 1);
    EXPECT_EQ(made.text("backend_name"), "thread");
    EXPECT_EQ(made.text("master_addr"), "N/A");
    EXPECT_THAT(made.text("module_name"), HasSubstr("Mlp"));
    EXPECT_THAT(to_json(made), HasSubstr("\"world_size\": 2"));
    for (const auto* const each :
         {"broadcast_buffers", "find_unused_parameters", "static_graph", "has_sync_bn", "is_multi_device_module",
          "join_uneven_inputs", "has_error", "can_set_static_graph", "has_rebuilt_buckets", "iteration"}) {
      EXPECT_TRUE(made.integers.contains(each)) << each;
    }
    for (const auto* const each : {"device_ids", "dtypes", "comm_hook", "error", "bucket_sizes", "master_port",
                                   "torch_distributed_debug", "cuda_visible_devices"}) {
      EXPECT_TRUE(made.strings.contains(each)) << each;
    }
    EXPECT_ERROR(ValueError, ddp.set_logging_sample_rate(0), "sample rate");
    ddp.set_logging_sample_rate(4);
    std::vector<std::int64_t> sampled;
    for (int i = 1; i <= 20; ++i) {
      ddp.zero_grad();
      ddp.forward(random_batch(i, {3, 4})).sum().backward();
      sampled.push_back(ddp.logging_data().integer("iteration"));
    }
    EXPECT_EQ(sampled[4], 4);
    EXPECT_EQ(sampled[19], 16);
    const auto log = ddp.logging_data();
    for (const auto* const name : {"forward_compute_time", "backward_compute_time", "backward_comm_time"}) {
      EXPECT_GT(log.integer(name), 0) << name;
      EXPECT_GT(log.integer(std::string("avg_") + name), 0) << name;
    }
    EXPECT_LE(log.integer("backward_comm_time_start"), log.integer("backward_comm_time_end"));
  });
}

TEST(DdpLog, CountsUnusedParametersAndOverlap) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel unused(Branches(), {.process_group = group, .find_unused_parameters = true});
    for (int i = 0; i < 2; ++i) unused.forward(torch::ones({1}, torch::kDouble), false).sum().backward();
    EXPECT_EQ(unused.logging_data().integer("unused_parameter_size"), 8);
    DistributedDataParallel buckets(Mlp(), {.process_group = group, .bucket_cap_mb = 0.0001});
    for (int i = 0; i < 4; ++i) {
      buckets.zero_grad();
      buckets.forward(random_batch(i, {3, 4})).sum().backward();
    }
    const auto log = buckets.logging_data();
    EXPECT_GT(log.integer("backward_compute_comm_overlap_time"), 0);
    EXPECT_LE(log.integer("backward_compute_comm_overlap_time"), log.integer("backward_comm_time"));
  });
}

TEST(DdpLog, ShowsBucketsThatAHookReduces) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Mlp(), {.process_group = group, .bucket_cap_mb = 0.0001});
    ddp.register_comm_hook(hooks::allreduce(group));
    ddp.record_timeline();
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      ddp.forward(random_batch(i, {3, 4})).sum().backward();
    }
    EXPECT_THAT(ddp.timeline_json(), HasSubstr("bucket 2"));
  });
}

TEST(DdpLog, DumpsTheEnvironment) {
  ::setenv("NCCL_DEBUG", "WARN", 1);
  EXPECT_THAT(ddp_environment(), HasSubstr("env:NCCL_DEBUG=WARN\n"));
  ::unsetenv("NCCL_DEBUG");
  EXPECT_THAT(ddp_environment(), HasSubstr("env:NCCL_DEBUG=N/A\n"));
}

TEST(DdpLog, SaysWhetherTheGraphLooksStatic) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel ddp(Branches(), {.process_group = group, .find_unused_parameters = true});
    const auto x = torch::ones({1}, torch::kDouble);
    ddp.forward(x, true).sum().backward();
    EXPECT_EQ(ddp.logging_data().integer("can_set_static_graph"), 1);
    ddp.forward(x, false).sum().backward();
    EXPECT_EQ(ddp.logging_data().integer("can_set_static_graph"), 0);
  });
}

}  // namespace
}  // namespace cohort::test
