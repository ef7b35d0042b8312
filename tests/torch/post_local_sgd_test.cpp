// SPDX-License-Identifier: BSD-3-Clause
//
// Averages over few ranks often and over all seldom: post-local SGD and model averagers.
#include <cohort/torch/hooks.h>
#include <cohort/torch/post_local_sgd.h>

#include <sstream>

#include "support/log_capture.h"
#include "torch/hook_buckets.h"

namespace cohort::test {
namespace {

TEST(PostLocalSgdProcesses, RanksOfAHostFindEachOther) {
  at::set_num_threads(1);
  with_processes(
      4,
      [](const ProcessGroupPtr& group) {
        const auto state = std::make_shared<PostLocalSgdState>(PostLocalSgdOptions{.process_group = group});
        const auto result = HookBucket({own(group)}).through(hooks::post_local_sgd(state));
        EXPECT_TRUE(at::equal(result, at::full({2}, group->rank() < 2 ? 1.5 : 3.5)));
        EXPECT_EQ(state->options().subgroup->size(), 2);
      },
      patient, "shm", /*hosts=*/2);
}

/// Groups of two neighbours.
ProcessGroupPtr pair_of(const ProcessGroupPtr& group) {
  ProcessGroupPtr mine;
  for (int first = 0; first < group->size(); first += 2) {
    if (auto part = group->split_group({first, first + 1})) mine = part;
  }
  return mine;
}

TEST(PostLocalSgd, AveragesOverAllThenOverTheSubgroup) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto state = std::make_shared<PostLocalSgdState>(
        PostLocalSgdOptions{.process_group = group, .subgroup = pair_of(group), .start_local_sgd_iter = 2});
    const auto hook = hooks::post_local_sgd(state);
    for (int step = 0; step < 4; ++step) {
      for (std::size_t index = 0; index < 2; ++index) {
        const auto result = HookBucket({own(group)}).through(hook, index, 2);
        const double pair = group->rank() < 2 ? 1.5 : 3.5;
        EXPECT_TRUE(at::equal(result, at::full({2}, step < 2 ? 2.5 : pair))) << step;
      }
    }
    EXPECT_EQ(state->iteration(), 4);

    const auto nothing = std::make_shared<PostLocalSgdState>(PostLocalSgdOptions{
        .process_group = group, .start_local_sgd_iter = 0, .post_local_gradient_all_reduce = false});
    EXPECT_TRUE(at::equal(HookBucket({own(group)}).through(hooks::post_local_sgd(nothing)), own(group)));
    EXPECT_ERROR(ValueError, PostLocalSgdState({.process_group = group, .start_local_sgd_iter = -1}), "-1");
    EXPECT_ERROR(ValueError, hooks::post_local_sgd(nullptr), "not null");
  });
}

TEST(PostLocalSgd, WithoutASubgroupItIsTheHosts) {
  // Threads are on one host.
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto state = std::make_shared<PostLocalSgdState>(PostLocalSgdOptions{.process_group = group});
    EXPECT_TRUE(at::equal(HookBucket({own(group)}).through(hooks::post_local_sgd(state)), at::full({2}, 1.5)));
    EXPECT_EQ(state->options().subgroup->size(), 2);
  });
}

at::Tensor parameter_of(const ProcessGroupPtr& group, double plus = 0) {
  auto parameter = (own(group) + plus).requires_grad_();
  parameter.mutable_grad() = at::zeros({2}, at::kDouble);
  return parameter;
}
/// Which steps averaged something: the value of the first element after each, starting afresh each time.
std::vector<double> averages(ModelAverager& averager, const ProcessGroupPtr& group, int steps) {
  std::vector<double> values;
  for (int step = 0; step < steps; ++step) {
    const auto parameter = parameter_of(group);
    averager.average_parameters({parameter});
    values.push_back(parameter[0].item<double>());
  }
  return values;
}

TEST(ModelAveragers, PeriodicAveragesWhenItIsDue) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    PeriodicModelAverager averager({.process_group = group, .period = 3, .warmup_steps = 2});
    const double mine = group->rank() + 1.0;
    EXPECT_EQ(averages(averager, group, 7), (std::vector<double>{mine, mine, 1.5, mine, mine, 1.5, mine}));
    EXPECT_EQ(averager.step(), 7);
    EXPECT_ERROR(ValueError, PeriodicModelAverager({.process_group = group, .period = 0}), "at least 1");
    EXPECT_ERROR(ValueError, PeriodicModelAverager({.process_group = group, .period = 2, .warmup_steps = -1}), "-1");
  });
}

TEST(ModelAveragers, TakeParametersWithAGradientOfAnyTypeAndOrder) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    PeriodicModelAverager averager({.process_group = group, .period = 2});
    const double mine = group->rank() + 1.0;
    const auto without = at::full({3}, mine).requires_grad_();
    auto floats = at::full({2, 3}, static_cast<float>(mine)).requires_grad_();
    floats.mutable_grad() = at::zeros({2, 3});
    auto image = at::full({1, 2, 3, 4}, mine, at::kDouble).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    image.mutable_grad() = at::zeros_like(image);
    const auto before = group->sequence_number();
    averager.average_parameters({without, floats, parameter_of(group), image});
    EXPECT_EQ(group->sequence_number(), before + 2);  // one for each type
    EXPECT_TRUE(at::equal(without, at::full({3}, mine)));
    EXPECT_TRUE(at::equal(floats, at::full({2, 3}, 1.5F)));
    EXPECT_TRUE(at::equal(image, at::full({1, 2, 3, 4}, 1.5, at::kDouble)));
    EXPECT_TRUE(image.is_leaf() && image.requires_grad());
  });
}

TEST(ModelAveragers, HierarchicalAveragesOverFewOftenAndOverAllSeldom) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    HierarchicalModelAverager averager(
        {.process_group = group, .period_group_sizes = {{2, 2}, {4, 4}}, .warmup_steps = 1});
    const double mine = group->rank() + 1.0;
    const double pair = group->rank() < 2 ? 1.5 : 3.5;
    EXPECT_EQ(averages(averager, group, 8), (std::vector<double>{mine, mine, pair, mine, 2.5, mine, pair, mine}))
        << "periods count from step 0, as PyTorch's do, and not from the end of the warm-up";

    const auto make = [&](std::vector<std::pair<std::int64_t, std::int64_t>> levels) {
      HierarchicalModelAverager bad({.process_group = group, .period_group_sizes = std::move(levels)});
    };
    EXPECT_ERROR(ValueError, make({}), "there are none");
    EXPECT_ERROR(ValueError, make({{2, 2}}), "the last size is 2; it must be that of the group, 4");
    EXPECT_ERROR(ValueError, make({{2, 3}, {4, 4}}), "groups of 3");
    EXPECT_ERROR(ValueError, make({{4, 2}, {2, 4}}), "period 2 comes after 4");
    EXPECT_ERROR(ValueError, make({{2, 4}, {4, 4}}), "size 4 comes after 4");
    EXPECT_ERROR(ValueError, make({{0, 4}}), "period 0");
  });
}

TEST(ModelAveragers, WarnOfAPeriodOfOne) {
  LogCapture warnings;
  with_torch_threads(1, [](const ProcessGroupPtr& group) { PeriodicModelAverager averager({.process_group = group}); });
  EXPECT_THAT(warnings.text(), ::testing::HasSubstr("after every step"));
}

TEST(PostLocalSgdOptimizerTest, StepsThenAveragesAndRemembersItsStep) {
  LogCapture warnings;
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto averager = [&] {
      return std::make_shared<PeriodicModelAverager>(ModelAveragerOptions{.process_group = group, .period = 3});
    };
    auto parameter = parameter_of(group);
    const auto start = [&](PostLocalSgdOptimizer& optimizer, int steps) {
      for (int step = 0; step < steps; ++step) {
        parameter.mutable_grad() = at::full({2}, group->rank() + 1.0);
        optimizer.step();
      }
    };
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(1.0).momentum(0.5));
    PostLocalSgdOptimizer optimizer(sgd, averager());
    start(optimizer, 1);
    // rank + 1 less a gradient of rank + 1 is 0 everywhere, and so is its average.
    EXPECT_TRUE(at::equal(parameter, at::zeros({2}, at::kDouble)));
    start(optimizer, 1);
    EXPECT_TRUE(at::equal(parameter, at::full({2}, -1.5 * (group->rank() + 1))));  // momentum; on its own
    std::stringstream file;
    torch::save(optimizer, file);
    EXPECT_EQ(optimizer.averager().step(), 2);

    torch::optim::SGD other({parameter}, torch::optim::SGDOptions(1.0).momentum(0.5));
    PostLocalSgdOptimizer restored(other, averager());
    torch::load(restored, file);
    EXPECT_EQ(restored.averager().step(), 2);
    start(restored, 1);
    // Momentum came back too: 0.5 * 1.5 + 1 more of the gradient; not due.
    EXPECT_TRUE(at::equal(parameter, at::full({2}, -3.25 * (group->rank() + 1))));
    start(restored, 1);
    EXPECT_TRUE(at::equal(parameter, at::full({2}, -(3.25 + 1.875) * 1.5)));  // step 3: due
    restored.zero_grad();

    std::stringstream plain;
    torch::save(sgd, plain);
    torch::load(restored, plain);
    EXPECT_EQ(restored.averager().step(), 0);
    EXPECT_ERROR(ValueError, PostLocalSgdOptimizer(sgd, nullptr), "averager");
  });
  EXPECT_THAT(warnings.text(), ::testing::HasSubstr("no step of a model averager"));
}

}  // namespace
}  // namespace cohort::test
