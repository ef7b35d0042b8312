// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/current_group.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

ProcessGroupPtr make_group() {
  return std::make_shared<ProcessGroup>(std::make_shared<HashStore>(), 0, 1);
}

TEST(CurrentGroup, NoneAtFirst) {
  EXPECT_EQ(current_process_group(), nullptr);
  EXPECT_ERROR(Error, require_current_process_group("init_device_mesh"), "init_device_mesh");
  EXPECT_ERROR(Error, require_current_process_group("init_device_mesh"), "ProcessGroupGuard");
}

TEST(CurrentGroup, IsTheVeryObjectUntilTheScopeEnds) {
  const auto outer = make_group();
  const auto inner = make_group();
  {
    const ProcessGroupGuard first(outer);
    EXPECT_EQ(current_process_group(), outer);
    EXPECT_EQ(require_current_process_group("test"), outer);
    {
      const ProcessGroupGuard second(inner);
      EXPECT_EQ(current_process_group(), inner);
      {
        const ProcessGroupGuard none(nullptr);
        EXPECT_EQ(current_process_group(), nullptr);
        EXPECT_THROW(require_current_process_group("test"), Error);
        const ProcessGroupGuard again(outer);
        EXPECT_EQ(current_process_group(), outer);
      }
      EXPECT_EQ(current_process_group(), inner);
    }
    EXPECT_EQ(current_process_group(), outer);
  }
  EXPECT_EQ(current_process_group(), nullptr);
}

TEST(CurrentGroup, RestoredWhenAnExceptionLeavesTheScope) {
  const auto outer = make_group();
  const ProcessGroupGuard first(outer);
  EXPECT_THROW(
      {
        const ProcessGroupGuard second(make_group());
        throw std::runtime_error("on the way out");
      },
      std::runtime_error);
  EXPECT_EQ(current_process_group(), outer);
}

TEST(CurrentGroup, EachThreadHasItsOwn) {
  const auto here = make_group();
  const ProcessGroupGuard scope(here);
  std::thread([&] {
    EXPECT_EQ(current_process_group(), nullptr) << "nothing is inherited";
    const auto there = make_group();
    const ProcessGroupGuard other(there);
    EXPECT_EQ(current_process_group(), there);
  }).join();
  EXPECT_EQ(current_process_group(), here);
}

TEST(CurrentGroup, GuardKeepsTheGroupAlive) {
  auto group = make_group();
  const std::weak_ptr<ProcessGroup> watch = group;
  {
    const ProcessGroupGuard scope(std::move(group));
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace cohort::test
