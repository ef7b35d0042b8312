// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/issue_observer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "support/groups.h"

namespace cohort::test {
namespace {

TEST(IssueObservers, SeeAsynchronousOperationsOfTheirThread) {
  with_threads(2, [](const ProcessGroupPtr& group) {
    std::vector<OpType> outer;
    std::vector<OpType> inner;
    std::vector<Work> works;
    std::vector<float> x(4, 1.0F);
    const IssueObserver scope([&](const Operation& op, const Work& work) {
      outer.push_back(op.type);
      works.push_back(work);
    });
    group->all_reduce(x, {.async_op = true}).wait();
    group->all_reduce(x);
    {
      const IssueObserver nested([&](const Operation& op, const Work& /*work*/) { inner.push_back(op.type); });
      group->barrier({.async_op = true}).wait();
      const IssueObserver nobody({});
      group->all_reduce(x, {.async_op = true}).wait();
    }
    const int peer = 1 - group->rank();
    if (group->rank() == 0) group->send(x, peer, {.async_op = true}).wait();
    if (group->rank() == 1) group->recv(x, peer, {.async_op = true}).wait();
    const auto p2p = group->rank() == 0 ? OpType::send : OpType::recv;
    EXPECT_THAT(outer, ::testing::ElementsAre(OpType::all_reduce, p2p));
    EXPECT_THAT(inner, ::testing::ElementsAre(OpType::barrier));
    for (const auto& work : works) EXPECT_TRUE(work.is_success());
  });
}

}  // namespace
}  // namespace cohort::test
