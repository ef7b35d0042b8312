// SPDX-License-Identifier: BSD-3-Clause
//
// Uneven inputs.
#include <cohort/torch/hooks.h>
#include <cohort/torch/join.h>
#include <cohort/torch/zero_optimizer.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "torch/ddp_test.h"

namespace cohort::test {
namespace {

using ::testing::ElementsAre;

at::Tensor input_of(const ProcessGroupPtr& group) {
  return torch::full({1}, group->rank() + 1.0, torch::kDouble);
}

TEST(Join, RanksWithFewerInputsFollowAndModelsEndEqual) {
  for (const int size : {1, 2, 3}) {
    with_torch_threads(size, [](const ProcessGroupPtr& group) {
      Mlp net;
      fill(*net, group->rank());
      DistributedDataParallel ddp(net, {.process_group = group});
      torch::optim::SGD optimizer(ddp.parameters(), 0.1);
      join({&ddp}, [&] {
        for (int i = 0; i < 10 + group->rank(); ++i) {
          optimizer.zero_grad();
          ddp.forward(random_batch(i, {3, 4})).pow(2).mean().backward();
          optimizer.step();
        }
      });
      EXPECT_EQ(ddp.logging_data().integer("join_uneven_inputs"), 1);
      std::vector<at::Tensor> rows;
      for (const auto& each : net->parameters()) rows.push_back(each.detach().reshape({-1}));
      const auto all = all_gather_async(*group, torch::cat(rows)).value();
      for (int rank = 1; rank < group->size(); ++rank) EXPECT_TRUE(torch::equal(all[rank], all[0]));
      // And go on as ever.
      ddp.forward(random_batch(1, {3, 4})).sum().backward();
    });
  }
}

std::vector<double> gradients_of(const ProcessGroupPtr& group, DdpOptions options, const JoinOptions& how,
                                 const std::vector<int>& inputs) {
  options.process_group = group;
  Scale net;
  DistributedDataParallel ddp(net, options);
  std::vector<double> seen;
  join(
      {&ddp},
      [&] {
        for (int i = 0; i < inputs[static_cast<std::size_t>(group->rank())]; ++i) {
          ddp.zero_grad();
          ddp.forward(input_of(group)).sum().backward();
          seen.push_back(grad_of(net->weight));
        }
      },
      how);
  return seen;
}

TEST(Join, DividesByHowManyThereWereOrByHowManyThereAre) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const bool is_long = group->rank() == 1;
    const auto by_all = gradients_of(group, {}, {}, {2, 3});
    const auto by_alive = gradients_of(group, {}, {.divide_by_initial_size = false}, {2, 3});
    EXPECT_EQ(by_all, is_long ? std::vector<double>({1.5, 1.5, 1.0}) : std::vector<double>({1.5, 1.5}));
    EXPECT_EQ(by_alive, is_long ? std::vector<double>({1.5, 1.5, 2.0}) : std::vector<double>({1.5, 1.5}));
  });
}

/// What join.h says first: added to an average that is there, a later one counts too little once a rank has ended.
TEST(Join, AccumulatesInNoSyncAndNotOverAverages) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const bool in_no_sync : {true, false}) {
      Scale net;
      DistributedDataParallel ddp(net, {.process_group = group});
      std::vector<double> seen;
      join({&ddp}, [&] {
        for (int i = 0; i < 1 + group->rank(); ++i) {
          ddp.zero_grad();
          for (int batch = 0; batch < 2; ++batch) {
            std::optional<ddp::NoSync> local;
            if (in_no_sync && batch == 0) local.emplace(ddp.no_sync());
            ddp.forward(input_of(group)).sum().backward();
          }
          seen.push_back(grad_of(net->weight));
        }
      });
      // Two batches of 1 and of 2, averaged over 2 ranks; then those of 2 alone. Over averages, rank 1 adds 2 to the
      // first average of 1 and divides both by 2.
      if (group->rank() == 0) {
        EXPECT_EQ(seen, std::vector<double>({3}));
      } else {
        EXPECT_EQ(seen, in_no_sync ? std::vector<double>({3, 2}) : std::vector<double>({3, 1.5}));
      }
    }
  });
}

/// And what it says of optimizers: a rank that ended early has old moments.
TEST(Join, OptimizersOfRanksThatEndedEarlyHaveOldMoments) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net;
    DistributedDataParallel ddp(net, {.process_group = group});
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.5).momentum(0.5));
    const auto train = [&] {
      optimizer.zero_grad();
      ddp.forward(input_of(group)).sum().backward();
      optimizer.step();
    };
    join({&ddp}, [&] {
      for (int i = 0; i < 1 + group->rank(); ++i) train();
    });
    const auto differ = [&] {
      const auto all = all_gather_async(*group, net->weight.detach().reshape({1})).value();
      return !torch::equal(all[0], all[1]);
    };
    EXPECT_FALSE(differ()) << "models are equal when a join has ended";
    train();
    EXPECT_TRUE(differ()) << "and drift apart: if they do not any more, join.h says too little";
  });
}

TEST(Join, ARankMayHaveNoInputAtAllAndItMayBeRankZero) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    for (const auto& inputs : {std::vector<int>{0, 3, 3}, std::vector<int>{3, 0, 1}, std::vector<int>{0, 0, 2}}) {
      const auto longest = *std::max_element(inputs.begin(), inputs.end());
      std::vector<double> averages;  // of the inputs of all ranks, zeros included
      for (int i = 0; i < longest; ++i) {
        double sum = 0;
        for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
          if (i < inputs[rank]) sum += static_cast<double>(rank) + 1;
        }
        averages.push_back(sum / 3);
      }
      Scale net(group->rank() + 1.0);
      DistributedDataParallel ddp(net, {.process_group = group, .gradient_as_bucket_view = group->rank() != 1});
      torch::optim::SGD optimizer(ddp.parameters(), 1.0);
      const auto mine = static_cast<std::size_t>(inputs[static_cast<std::size_t>(group->rank())]);
      join({&ddp}, [&] {
        for (std::size_t i = 0; i < mine; ++i) {
          optimizer.zero_grad();
          ddp.forward(input_of(group)).sum().backward();
          EXPECT_DOUBLE_EQ(grad_of(net->weight), averages[i]);
          optimizer.step();
        }
      });
      EXPECT_DOUBLE_EQ(net->weight.item<double>(), 1 - std::accumulate(averages.begin(), averages.end(), 0.0))
          << "rank 0's beginning and the steps of the rank that ended last";
    }
  });
}

// With what the ranks without input have left in their buffers, and as often as on the others: PyTorch's rule.
TEST(Join, RanksWithoutInputRunTheBufferHook) {
  for (const auto when : {BufferSync::before_forward, BufferSync::after_forward}) {
    with_torch_threads(2, [when](const ProcessGroupPtr& group) {
      Scale net;
      const auto count = net->register_buffer("count", torch::zeros({1}, torch::kDouble));
      DistributedDataParallel ddp(net, {.process_group = group, .init_sync = false});
      int calls = 0;
      ddp.register_buffer_hook(
          [&](const std::map<std::string, at::Tensor>& buffers) {
            ++calls;
            return std::vector<Future<void>>{
                all_reduce_async(*group, buffers.at("count")).then([](const at::Tensor&) {})};
          },
          when);
      join({&ddp}, [&] {
        for (int i = 0; i < (group->rank() == 0 ? 3 : 1); ++i) {
          count.fill_(group->rank() + 1.0);
          ddp.zero_grad();
          ddp.forward(input_of(group)).sum().backward();
          // Rank 1 keeps what the last sum has left: 3, then 1 + 3, then 1 + 4.
          EXPECT_EQ(count.item<double>(), i == 0 ? 3.0 : 3.0 + i);
        }
      });
      EXPECT_EQ(calls, 3);
      EXPECT_EQ(count.item<double>(), 5.0);
    });
  }
}

TEST(Join, AHookDividesByItselfAndIsRefusedWhereItWouldHaveToDivideByLess) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const bool is_long = group->rank() == 1;
    DistributedDataParallel hooked(Scale(), {.process_group = group});
    hooked.register_comm_hook(hooks::all_reduce(group));
    const JoinOptions by_alive{.divide_by_initial_size = false};
    EXPECT_ERROR(ValueError,
                 join(
                     {&hooked}, [] {}, by_alive),
                 "divide_by_initial_size");
    join({&hooked}, [] {});
    DistributedDataParallel late(Scale(), {.process_group = group});
    join(
        {&late}, [&] { EXPECT_ERROR(ValueError, late.register_comm_hook(hooks::all_reduce(group)), "divides"); },
        by_alive);
    // The hook of mixed precision is the library's own and knows how many there are.
    const auto low =
        gradients_of(group, {.mixed_precision = MixedPrecision{.param_dtype = at::kFloat}}, by_alive, {2, 3});
    EXPECT_EQ(low, is_long ? std::vector<double>({1.5, 1.5, 2.0}) : std::vector<double>({1.5, 1.5}));
  });
}

TEST(Join, WorksWithUnusedParametersHooksBuffersAndAccumulation) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const bool is_long = group->rank() == 1;
    const auto expected = is_long ? std::vector<double>({1.5, 1.5, 1.0}) : std::vector<double>({1.5, 1.5});
    EXPECT_EQ(gradients_of(group, {.find_unused_parameters = true}, {}, {2, 3}), expected);
    EXPECT_EQ(gradients_of(group, {.static_graph = true}, {}, {2, 3}), expected);
    EXPECT_EQ(gradients_of(group, {.gradient_as_bucket_view = false}, {}, {2, 3}), expected);

    Scale hooked;
    hooked->register_buffer("calls", torch::zeros({1}, torch::kDouble));
    DistributedDataParallel ddp(hooked, {.process_group = group});
    int calls = 0;
    ddp.register_comm_hook([&](GradBucket& bucket) {
      ++calls;
      return all_reduce_async(*group, bucket.buffer());
    });
    join({&ddp}, [&] {
      for (int i = 0; i < 2 + 2 * group->rank(); ++i) {
        hooked->named_buffers()["calls"].fill_(group->rank() * 10 + i);
        if (i % 2 == 0) {
          const auto local = ddp.no_sync();
          ddp.forward(input_of(group)).sum().backward();
        } else {
          ddp.forward(input_of(group)).sum().backward();
        }
      }
    });
    EXPECT_EQ(calls, 2) << "as often on the rank that has ended";
    EXPECT_EQ(hooked->named_buffers()["calls"].item<double>(), 13.0) << "of the rank that ended last";
  });
}

TEST(Join, EarlyTerminationIsAnErrorOnAllRanksWhereAskedFor) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    EXPECT_ERROR(Error, gradients_of(group, {}, {.throw_on_early_termination = true}, {2, 1, 3}), "no more input");
  });
}

TEST(Join, RefusesWhatCannotBeJoined) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto other = group->split_group({0, 1});
    DistributedDataParallel a(Scale(), {.process_group = group});
    DistributedDataParallel b(Scale(), {.process_group = other});
    EXPECT_ERROR(ValueError, join({}, [] {}), "nothing");
    EXPECT_ERROR(ValueError, join({&a, &b}, [] {}), "one process group");
    EXPECT_ERROR(ValueError, join({&a}, [] { throw ValueError("inside"); }), "inside");
    bool ran = false;
    join({&a}, [&] { ran = true; }, {.enable = false});
    EXPECT_TRUE(ran);
  });
}

TEST(Join, ARankThatFollowsForLongSaysSo) {
  const LogCount warnings("has followed the others for 1000 iterations");
  with_torch_threads(2, [](const ProcessGroupPtr& group) { gradients_of(group, {}, {}, {1, 1003}); });
  EXPECT_EQ(warnings.value(), 1);
}

TEST(Join, RanksThatOnlyFollowedGoOnAfterwards) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const bool is_static : {false, true}) {
      Scale net;
      DistributedDataParallel ddp(net, {.process_group = group, .static_graph = is_static});
      const auto step = [&] {
        ddp.zero_grad();
        ddp.forward(input_of(group)).sum().backward();
      };
      join({&ddp}, [&] {
        for (int i = 0; i < (is_static ? 1 : 0) + group->rank(); ++i) step();
      });
      for (int i = 0; i < 3; ++i) {
        step();
        EXPECT_EQ(grad_of(net->weight), 1.5);
      }
    }
  });
}

TEST(Join, WhatARankWithoutInputUsedLastDoesNotCount) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Branches net;
    DistributedDataParallel ddp(net, {.process_group = group, .find_unused_parameters = true});
    join({&ddp}, [&] {
      for (int i = 0; i < 1 + group->rank(); ++i) {
        for (auto& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
        ddp.forward(input_of(group), i == 0).sum().backward();
        EXPECT_EQ(net->b.grad().defined(), i == 0);
      }
    });
  });
}

TEST(Join, BuffersAreThoseOfTheHighestRankThatHasInput) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale net;
    net->register_buffer("count", torch::zeros({1}, torch::kDouble));
    DistributedDataParallel ddp(net, {.process_group = group});
    join({&ddp}, [&] {
      for (int i = 0; i < (group->rank() == 0 ? 3 : 1); ++i) {
        net->named_buffers()["count"].fill_(10.0 * group->rank() + i);
        ddp.forward(input_of(group)).sum().backward();
        EXPECT_EQ(net->named_buffers()["count"].item<double>(), i == 0 ? 10.0 : i);
      }
    });
  });
}

TEST(Join, EachModelSynchronisesForItself) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale first;
    Scale second;
    DistributedDataParallel a(first, {.process_group = group});
    DistributedDataParallel b(second, {.process_group = group});
    join({&a, &b}, [&] {
      for (int i = 0; i < 2 + group->rank(); ++i) {
        first->zero_grad();
        second->zero_grad();
        a.forward(input_of(group)).sum().backward();
        if (i % 2 == 0) {
          const auto local = b.no_sync();
          b.forward(input_of(group)).sum().backward();
        } else {
          b.forward(input_of(group)).sum().backward();
        }
      }
    });
    if (group->rank() == 1) {
      EXPECT_EQ(grad_of(first->weight), 1.0);
      EXPECT_EQ(grad_of(second->weight), 2.0) << "its own, in no_sync";
    }
  });
}

TEST(Join, RefusesWhatRanksWithoutInputCannotFollow) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    DistributedDataParallel fine(Scale(), {.process_group = group});
    DistributedDataParallel skips(
        Scale(), {.process_group = group, .find_unused_parameters = true, .skip_all_reduce_unused_params = true});
    EXPECT_ERROR(ValueError, join({&fine, &skips}, [] {}), "skip_all_reduce_unused_params");
    Branches net;
    DistributedDataParallel delays(
        net, {.process_group = group, .delay_all_reduce_named_params = {{"b", net->b}}, .delay_until = net->b});
    EXPECT_ERROR(ValueError, join({&delays}, [] {}), "delay_all_reduce_named_params");
    DistributedDataParallel steps(Scale(), {.process_group = group});
    steps.register_zero_step(std::make_shared<ZeroOptimizer<torch::optim::SGD>>(
        steps.parameters(), torch::optim::SGDOptions(0.1), ZeroOptions{.process_group = group}));
    EXPECT_ERROR(ValueError, join({&steps}, [] {}), "register_zero_step");
    EXPECT_NO_THROW(fine.forward(torch::ones({1}, torch::kDouble))) << "not in a join that never began";
  });
}

TEST(Join, SeveralModelsFollowTogether) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Scale first;
    Scale second;
    DistributedDataParallel a(first, {.process_group = group});
    DistributedDataParallel b(second, {.process_group = group});
    join({&a, &b}, [&] {
      for (int i = 0; i < 2 + group->rank(); ++i) {
        first->zero_grad();
        second->zero_grad();
        a.forward(input_of(group)).sum().backward();
        b.forward(2 * input_of(group)).sum().backward();
      }
    });
    if (group->rank() == 1) {
      EXPECT_EQ(grad_of(first->weight), 1.0);
      EXPECT_EQ(grad_of(second->weight), 2.0);
    }
  });
}

}  // namespace
}  // namespace cohort::test
