// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/issue_observer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "support/groups.h"

namespace cohort::test {
namespace {

TEST(IssueObservers, SeeTheOperationsOfTheirThread) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    std::vector<OpType> outer;
    std::vector<OpType> inner;
    std::vector<Work> works;
    std::vector<float> x(4, 1.0F);
    const IssueObserver scope([&](const Issue& issue) {
      outer.push_back(issue.op.type);
      works.push_back(issue.work);
      EXPECT_EQ(&issue.group, group.get());
    });
    group->all_reduce(x, {.async_op = true}).wait();
    group->all_reduce(x);
    {
      const IssueObserver nested([&](const Issue& issue) { inner.push_back(issue.op.type); });
      group->barrier({.async_op = true}).wait();
      const IssueObserver nobody({});
      group->all_reduce(x, {.async_op = true}).wait();
    }
    const int peer = 1 - group->rank();
    if (group->rank() == 0) group->send(x, peer, {.async_op = true}).wait();
    if (group->rank() == 1) group->recv(x, peer, {.async_op = true}).wait();
    const auto p2p = group->rank() == 0 ? OpType::send : OpType::recv;
    EXPECT_THAT(outer, ::testing::ElementsAre(OpType::all_reduce, OpType::all_reduce, p2p));
    EXPECT_THAT(inner, ::testing::ElementsAre(OpType::barrier));
    for (const auto& work : works) EXPECT_TRUE(work.is_success());
  });
}

TEST(IssueObservers, SeeTheWaitsOfTheirThread) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    std::vector<Work> waited;
    std::vector<float> x(4, 1.0F);
    std::vector<float> y(4, 1.0F);
    const IssueObserver scope([](const Issue&) {}, [&](const Work& work) { waited.push_back(work); });
    const auto first = group->all_reduce(x, {.async_op = true});
    const auto second = group->all_reduce(y, {.async_op = true});
    second.wait();
    first.wait(std::chrono::seconds(30));
    group->barrier({.async_op = true}).wait();
    ASSERT_EQ(waited.size(), 3U);
    EXPECT_TRUE(waited[0].is_same_operation(second));
    EXPECT_TRUE(waited[1].is_same_operation(first));
    EXPECT_FALSE(waited[1].is_same_operation(second));
    EXPECT_EQ(waited[2].op(), OpType::barrier);
  });
}

TEST(IssueObservers, LetAnOperationBeIssuedAgainWithOtherMemory) {
  with_threads(3, [](const ProcessGroupPtr& group) {
    std::vector<float> x(4, 1.0F);
    std::vector<float> y(4, 2.0F);
    std::optional<Operation> seen;
    {
      const IssueObserver scope([&](const Issue& issue) { seen.emplace(issue.op); });
      group->all_reduce(x);
    }
    const auto bytes = std::as_writable_bytes(std::span(y));
    const auto again = Operation::all_reduce(bytes, bytes, seen->dtype, seen->reduce);
    issue_again(*group, again, {.async_op = true}).wait();
    EXPECT_THAT(y, ::testing::Each(6.0F));
  });
}

}  // namespace
}  // namespace cohort::test
