// SPDX-License-Identifier: BSD-3-Clause
//
// The registry of works by storage, the scope that registers ordinary operations, and the warning at exit.
#include <ATen/ATen.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/tensor.h>

#include <cstdlib>

#include "torch/functional/functional_ranks.h"
#include "torch/functional/operators.h"
#include "torch/functional/work_registry.h"

namespace cohort::functional {
namespace {

using test::with_named_threads;

TEST(WorkRegistries, CollectSeveralWorksOfOneStorage) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const auto whole = at::ones({4});
    const auto first = all_reduce_(whole.narrow(0, 0, 2), "sum", group);
    const auto second = all_reduce_(whole.narrow(0, 2, 2), "sum", group);
    all_reduce_(whole, "sum", group);
    EXPECT_TRUE(wait_tensor(whole).equal(at::full({4}, 4.0)));
    EXPECT_FALSE(WorkRegistry::instance().contains(whole));
    EXPECT_TRUE(first.equal(second));
    EXPECT_TRUE(wait_tensor(at::ones({2})).equal(at::ones({2})));  // of no collective
  });
}

TEST(WorkRegistries, WaitForAllWorksIfOneFails) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const auto whole = at::ones({4});
    ops::all_reduce_(whole, "sum", group->id());
    ops::all_reduce_(whole, group->rank() == 0 ? "min" : "max", group->id());
    EXPECT_THROW(ops::wait_tensor(whole), MismatchError);
    EXPECT_FALSE(WorkRegistry::instance().contains(whole));
    EXPECT_TRUE(whole.equal(at::full({4}, 2.0))) << "the first collective has been waited for";
  });
}

TEST(WorkRegistries, LoseNoErrorIfSeveralResultsShareAStorage) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const auto whole = at::ones({4});
    const auto first = all_reduce_(whole, "sum", group);
    const auto second = all_reduce_(whole, group->rank() == 0 ? "min" : "max", group);
    EXPECT_THROW(first + 1, MismatchError) << "the memory is not what it should be";
    EXPECT_THROW(second + 1, MismatchError);
  });
}

TEST(InflightScopes, LetWaitTensorWaitForOrdinaryOperations) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const AllReduceOptions async{.async_op = true};
    const auto outside = at::ones({4});
    const auto inside = at::ones({4});
    const auto message = at::ones({4});
    auto unseen = group->all_reduce(outside, async);
    Work work;
    {
      const InflightCollectivesScope scope;
      { const InflightCollectivesScope nested; }
      work = group->all_reduce(inside.narrow(0, 1, 2), async);
      if (group->rank() == 0) group->send(message, 1, {.tag = 1, .async_op = true}).wait();
      const auto functional = all_reduce(at::ones({1}), "sum", group);
      EXPECT_EQ(functional.item<float>(), 2.0F);
    }
    if (group->rank() == 1) group->recv(message, 0, {.tag = 1});
    wait_tensor(inside);
    EXPECT_TRUE(work.is_completed());
    EXPECT_TRUE(inside.equal(at::tensor({1.0F, 2.0F, 2.0F, 1.0F})));
    unseen.wait();
    group->barrier();
    {
      const InflightCollectivesScope scope;
      const auto batched = at::ones({2});
      auto batch = group->batch();
      batch.all_reduce(batched);
      const auto waited = batch.run({.async_op = true});
      EXPECT_TRUE(wait_tensor(batched).equal(at::full({2}, 2.0)));
      auto again = group->all_reduce(batched, async);
      again.wait();  // leaves the registry
      group->barrier();
      EXPECT_EQ(unwaited_collectives(), 0U);
    }
    group->barrier();
  });
}

TEST(InflightScopes, LetWaitTensorThrowTheErrorsOfOrdinaryOperations) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const InflightCollectivesScope scope;
    const auto x = at::ones({4});
    const auto work =
        group->all_reduce(x, {.op = group->rank() == 0 ? ReduceOp::min() : ReduceOp::max(), .async_op = true});
    EXPECT_THROW(wait_tensor(x), MismatchError);
  });
}

TEST(WorkRegistriesDeathTest, WarnAtExit) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto leave_one = [](bool waits) {
    test::with_named_threads(1, [&](const ProcessGroupPtr& group) {
      const auto result = ops::all_reduce(at::ones({4}), "sum", group->id());
      if (waits) ops::wait_tensor(result);
    });
    std::exit(0);
  };
  EXPECT_EXIT(leave_one(false), ::testing::ExitedWithCode(0), "1 functional collective.s. were never waited for");
  EXPECT_EXIT(leave_one(true), ::testing::ExitedWithCode(0), "^[^w]*$");
}

}  // namespace
}  // namespace cohort::functional
