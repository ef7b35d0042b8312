// SPDX-License-Identifier: BSD-3-Clause
//
// Collectives start early and are awaited late, and otherwise nothing changes.
#include <c10/core/InferenceMode.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/tensor.h>

#include <memory>
#include <vector>

#include "torch/capture/passes_support.h"

namespace cohort::test {
namespace {

/// Without the passes that could remove what the tests look for.
constexpr PassOptions only_overlap{.remove_dead = false, .merge_common = false, .overlap = true};

TEST(Overlap, WaitsForAFunctionalCollectiveWhereItsResultIsUsed) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group](const at::Tensor& x) -> Tensors {
        const auto sum = functional::all_reduce(x, "sum", group);
        const auto rows = sum.view({-1});
        const auto beside = x.sin().cos();
        return {rows + beside.view({-1})};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_overlap, {4, 3}, group->rank());
    EXPECT_LT(place_of(recorded, "cohort::wait_tensor"), place_of(recorded, "aten::sin"));
    EXPECT_GT(place_of(optimized, "cohort::wait_tensor"), place_of(optimized, "aten::cos"));
    EXPECT_LT(place_of(optimized, "cohort::wait_tensor"), place_of(optimized, "aten::add"));
    EXPECT_NE(explained.find("overlap: 0 collectives start earlier, 1 waits stand later"), std::string::npos)
        << explained;
  });
}

TEST(Overlap, StartsACollectiveWithTheViewsItNeedsAsSoonAsItsDataAreThere) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group](const at::Tensor& x) -> Tensors {
        const auto twice = x * 2;
        const auto beside = x.sin().cos();
        const auto sum = functional::all_reduce(twice.view({-1}), "sum", group);
        return {sum, beside};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_overlap, {4, 3}, group->rank());
    EXPECT_GT(place_of(recorded, "cohort::all_reduce"), place_of(recorded, "aten::cos"));
    EXPECT_LT(place_of(optimized, "cohort::all_reduce"), place_of(optimized, "aten::sin"));
    EXPECT_GT(place_of(optimized, "cohort::wait_tensor"), place_of(optimized, "aten::cos"));
  });
}

TEST(Overlap, MovesTheWaitsOfPlainCollectives) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group](const at::Tensor& x) -> Tensors {
        auto sum = x + 1;
        const auto work = group->all_reduce(sum, {.async_op = true});
        work.wait();
        const auto beside = x.sin().cos();
        return {sum * beside};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_overlap, {4, 3}, group->rank());
    EXPECT_LT(place_of(recorded, "wait"), place_of(recorded, "aten::sin"));
    EXPECT_GT(place_of(optimized, "wait"), place_of(optimized, "aten::cos"));
    EXPECT_LT(place_of(optimized, "wait"), place_of(optimized, "aten::mul"));
  });
}

/// An all_reduce of `elements`, then independent work, then its use.
MakeStep blocking_step(const ProcessGroupPtr& group, bool is_functional, int work) {
  return [=] {
    return [=](const at::Tensor& x) -> Tensors {
      auto sum = x + 1;
      if (is_functional) {
        sum = functional::wait_tensor(functional::all_reduce(sum, "sum", group));
      } else {
        group->all_reduce(sum);
      }
      auto beside = x;
      for (int i = 0; i < work; ++i) beside = beside.sin();
      return {sum * beside};
    };
  };
}

TEST(Overlap, MakesALargeBlockingCollectiveAsynchronousIfThereIsWorkMeanwhile) {
  with_ranks([](const ProcessGroupPtr& group) {
    const std::vector<std::int64_t> large{160, 160};
    const auto [recorded, optimized, explained] =
        compare_runs(blocking_step(group, false, 12), only_overlap, large, group->rank());
    EXPECT_FALSE(recorded.nodes[place_of(recorded, "all_reduce")].is_async);
    EXPECT_TRUE(optimized.nodes[place_of(optimized, "all_reduce")].is_async);
    EXPECT_GT(place_of(optimized, "wait"), place_of(optimized, "aten::sin", 11));
    EXPECT_LT(place_of(optimized, "wait"), place_of(optimized, "aten::mul"));
    EXPECT_NE(explained.find("1 blocking collectives became asynchronous"), std::string::npos) << explained;
  });
}

TEST(Overlap, LeavesSmallCollectivesAndThoseWithoutWorkOnTheCallersThread) {
  with_ranks([](const ProcessGroupPtr& group) {
    for (const auto& [size, work] : {std::pair<std::int64_t, int>{8, 12}, {160, 1}}) {
      const auto runs = compare_runs(blocking_step(group, false, work), only_overlap, {size, size}, group->rank());
      EXPECT_EQ(count_of(runs.optimized, "wait"), 0U);
      EXPECT_FALSE(runs.optimized.nodes[place_of(runs.optimized, "all_reduce")].is_async);
    }
  });
}

TEST(Overlap, DoesNotPassWritesOfWhatIsInFlight) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group, state = at::ones({4, 3})](const at::Tensor& x) mutable -> Tensors {
        auto shard = x * 2;
        // It reads the shard until it is awaited.
        const auto all = functional::wait_tensor(functional::all_gather_tensor(shard, 0, group));
        const auto beside = x.sin();
        shard.add_(1);
        state.select(0, 1).add_(0.5);
        const auto sum = functional::all_reduce(state, "sum", group);
        return {all + 1, sum + 1, shard, beside};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_overlap, {4, 3}, group->rank());
    EXPECT_GT(place_of(optimized, "cohort::wait_tensor"), place_of(optimized, "aten::sin"));
    EXPECT_LT(place_of(optimized, "cohort::wait_tensor"), place_of(optimized, "aten::add_"));
    EXPECT_GT(place_of(optimized, "cohort::all_reduce"), place_of(optimized, "aten::add_", 1));
  });
}

TEST(Overlap, KeepsTheOrderOfCollectivesOfAllGroupsAndOfTheHost) {
  with_ranks([](const ProcessGroupPtr& group) {
    const auto other = group->split_group(group->size() == 2 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2});
    int calls = 0;
    const MakeStep make = [&] {
      return [group, other, &calls](const at::Tensor& x) -> Tensors {
        const auto late = x.sin().cos();
        const auto first = functional::all_reduce(late, "sum", group);
        on_host([&calls] { ++calls; });
        const auto second = functional::all_reduce(x, "sum", other);  // its data are there from the beginning
        auto third = x + 1;
        const auto work = group->all_reduce(third, {.async_op = true});
        work.wait();
        const auto barrier = group->barrier({.async_op = true});
        barrier.wait();
        on_host([&calls] { ++calls; });
        const auto beside = x.exp().log();
        return {first + 1, second + 1, third, beside};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_overlap, {4, 3}, group->rank());
    EXPECT_EQ(collectives_of(optimized), collectives_of(recorded));
    EXPECT_LT(place_of(optimized, "cohort::all_reduce"), place_of(optimized, "cohort::all_reduce", 1));
    // The other ranks have arrived when the host goes on.
    EXPECT_LT(place_of(optimized, "barrier"), place_of(optimized, "wait"));
    EXPECT_LT(place_of(optimized, "wait"), place_of(optimized, "host", 1));
  });
}

TEST(Overlap, DoesNotNeedMoreMemoryAtOnce) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group, shards = std::vector<at::Tensor>(8, at::ones({512, 512}))](const at::Tensor& x) -> Tensors {
        auto result = x;
        for (const auto& each : shards) {
          const auto whole = functional::all_gather_tensor(each, 0, group);
          result = (result * whole.narrow(0, 0, 512)).sin();
        }
        return {result};
      };
    };
    const auto [recorded, optimized, explained] = compare_runs(make, only_overlap, {512, 512}, group->rank());
    // The shards are there from the beginning, but not all of the wholes may be.
    EXPECT_GT(place_of(optimized, "cohort::all_gather_into_tensor", 7), place_of(optimized, "aten::sin", 4));
  });
}

/// The result is a known tensor, and the input is not to be written before it has been read.
TEST(Overlap, DoesNotPassWritesOfWhatIsGatheredIntoATensor) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group](const at::Tensor& x) -> Tensors {
        const auto shard = x * 2;
        const auto all = at::zeros({group->size() * x.size(0), x.size(1)});
        functional::wait_tensor(functional::all_gather_into_tensor_out(shard, group, all));
        shard.mul_(0.5);
        const auto beside = x.sin().cos();
        return {all * 2, beside, shard};
      };
    };
    const auto optimized = compare_runs(make, only_overlap, {4, 3}, group->rank()).optimized;
    EXPECT_LT(place_of(optimized, "cohort::wait_tensor"), place_of(optimized, "aten::mul_"));
  });
}

/// In inference mode operators arrive that are views by their schema and copy if they must.
TEST(Overlap, WaitsBeforeViewsThatCopy) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      return [group](const at::Tensor& x) -> Tensors {
        const c10::InferenceMode without_autograd;
        const auto sum = functional::all_reduce(x, "sum", group);
        const auto doubles = sum.to(at::kDouble);
        const auto beside = x.sin().cos();
        const auto rows = doubles.t().reshape({-1});
        return {rows + beside.view({-1})};
      };
    };
    const auto optimized = compare_runs(make, only_overlap, {4, 3}, group->rank()).optimized;
    EXPECT_LT(place_of(optimized, "cohort::wait_tensor"), place_of(optimized, "aten::to"));
  });
}

/// Tensors over parts of one piece of memory, which libtorch does not know to be one.
TEST(Overlap, KnowsMemoryThatSeveralTensorsAreMadeOver) {
  with_ranks([](const ProcessGroupPtr& group) {
    const MakeStep make = [&] {
      const auto memory = std::make_shared<std::vector<float>>(12);
      const auto over = [&](std::int64_t first, std::int64_t count) {
        return at::from_blob(memory->data() + first, {count}, [memory](void* /*data*/) {});
      };
      return [group, first = over(0, 6), second = over(6, 6), all = over(0, 12)](const at::Tensor& x) -> Tensors {
        const auto flat = x.reshape({-1});
        first.copy_(flat.narrow(0, 0, 6));
        second.copy_(flat.narrow(0, 6, 6));
        second.mul_(2);
        first.mul_(3);
        const auto work = group->all_reduce(buffer_of(all), {.async_op = true});
        work.wait();
        const auto beside = x.sin().cos();
        return {first + second, beside};
      };
    };
    const auto optimized = compare_runs(make, only_overlap, {4, 3}, group->rank()).optimized;
    EXPECT_GT(place_of(optimized, "all_reduce"), place_of(optimized, "aten::mul_", 1));
    EXPECT_LT(place_of(optimized, "wait"), place_of(optimized, "aten::add"));
  });
}

}  // namespace
}  // namespace cohort::test
