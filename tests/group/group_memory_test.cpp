// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/hash_store.h>
#include <cohort/memory.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "group/breakable_ranks.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using ::testing::Each;

class GroupMemoryOf : public ::testing::TestWithParam<Ranks> {
 protected:
  void SetUp() override {
    if (!is_over_shared_memory()) GTEST_SKIP() << "this backend has no memory of the group";
  }
};

TEST_P(GroupMemoryOf, AllocatingIsLocal) {
  GetParam().run([](const ProcessGroupPtr& group) {
    // Only one rank allocates, and different amounts: no rank waits for another.
    if (group->rank() == 0) {
      const auto sequence = group->sequence_number();
      const auto first = group->allocate(100);
      const auto second = group->allocate(1'000'000);
      EXPECT_EQ(first.bytes(), 100U);
      EXPECT_EQ(second.as<double>().size(), 125'000U);
      EXPECT_NE(first.data(), second.data());
      EXPECT_EQ(group->sequence_number(), sequence);
    }
    group->barrier();
  });
}

TEST_P(GroupMemoryOf, IsZeroedAlsoWhenUsedAgain) {
  GetParam().run([](const ProcessGroupPtr& group) {
    constexpr std::size_t count = 100'000;
    const void* address = nullptr;
    for (int i = 0; i < 3; ++i) {
      const auto memory = group->allocate(count * sizeof(int));
      const auto x = memory.as<int>();
      ASSERT_EQ(x.size(), count);
      ASSERT_EQ(std::count(x.begin(), x.end(), 0), static_cast<std::ptrdiff_t>(count));
      if (address != nullptr && group->name() == "shm") {
        EXPECT_EQ(memory.data(), address) << "what was freed is used again";
      }
      address = memory.data();
      std::fill(x.begin(), x.end(), 7);
      group->all_reduce(x);
      ASSERT_EQ(x[count - 1], 7 * group->size());
      group->barrier();
    }
  });
}

TEST_P(GroupMemoryOf, MixesWithOrdinaryMemory) {
  GetParam().run([](const ProcessGroupPtr& group) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{50'000}}) {
      const auto memory = group->allocate(count * sizeof(int));
      std::vector<int> ordinary(count);
      const auto x = group->rank() % 2 == 0 ? memory.as<int>() : std::span<int>(ordinary);
      std::iota(x.begin(), x.end(), group->rank());
      group->all_reduce(x);
      const int n = group->size();
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(x[i], n * static_cast<int>(i) + n * (n - 1) / 2);
      // A part that does not start at the beginning.
      group->broadcast(x.subspan(3, 5), {.root = n - 1});
    }
  });
}

TEST_P(GroupMemoryOf, OutlivesTheGroup) {
  GetParam().run([](const ProcessGroupPtr& world) {
    auto group = world->split_group([&] {
      std::vector<int> all(static_cast<std::size_t>(world->size()));
      std::iota(all.begin(), all.end(), 0);
      return all;
    }());
    const auto memory = group->allocate(4000);
    auto x = memory.as<int>();
    x[999] = 5;
    group->all_reduce(x);
    group.reset();
    world->barrier();
    EXPECT_EQ(x[999], 5 * world->size());
    x[0] = 1;
    EXPECT_EQ(x[0], 1);
    // Memory from a group that has been destroyed can be used in another group.
    world->all_reduce(x.first(1));
    EXPECT_EQ(x[0], world->size());
  });
}

TEST_P(GroupMemoryOf, TheParentsServesTheChild) {
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto memory = group->allocate(40'000);
    const auto child = group->split_group(group->size() == 1 ? std::vector{0} : std::vector{0, group->size() - 1});
    const auto x = memory.as<int>();
    std::fill(x.begin(), x.end(), 1);
    if (child) {
      child->all_reduce(x);
      EXPECT_THAT(x, Each(child->size()));
      const auto own = child->allocate(40'000);
      const auto y = own.as<int>();
      std::fill(y.begin(), y.end(), 1);
      child->all_reduce(y);
      EXPECT_EQ(y[9999], child->size());
    }
    std::fill(x.begin(), x.end(), 1);
    group->all_reduce(x);
    EXPECT_EQ(x[9999], group->size());
  });
}

TEST_P(GroupMemoryOf, ServesContainers) {
  GetParam().run([](const ProcessGroupPtr& group) {
    std::vector<float, Allocator<float>> v(1000, 1.0F, Allocator<float>(group));
    v.resize(5000, 1.0F);  // reallocates
    group->all_reduce(v);
    EXPECT_THAT(v, Each(static_cast<float>(group->size())));
    auto copy = v;
    auto moved = std::move(v);
    group->all_reduce(copy);
    EXPECT_EQ(copy[4999], static_cast<float>(group->size() * group->size()));
    EXPECT_EQ(moved[4999], static_cast<float>(group->size()));
    EXPECT_EQ(copy.get_allocator(), moved.get_allocator());
    std::vector<int, Allocator<int>> other{Allocator<int>(copy.get_allocator())};
    other.push_back(1);
    group->all_reduce(other);
    EXPECT_EQ(other[0], group->size());
  });
}

TEST_P(GroupMemoryOf, SeveralOutputsOfOneOperation) {
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto n = static_cast<std::size_t>(group->size());
    const auto in = group->allocate(1000 * sizeof(int));
    const auto out = group->allocate(1000 * n * sizeof(int));
    std::fill(in.as<int>().begin(), in.as<int>().end(), group->rank());
    group->all_gather(out.as<int>(), in.as<int>());
    for (std::size_t r = 0; r < n; ++r) EXPECT_EQ(out.as<int>()[1000 * r + 999], static_cast<int>(r));
  });
}

TEST_P(GroupMemoryOf, AHandleIsAKeepAlive) {
  GetParam().run([](const ProcessGroupPtr& group) {
    auto memory = group->allocate(4000);
    const std::weak_ptr<void> watch = memory.owner();
    Buffer buffer(memory.data(), DType::i32, {1000}, {}, {}, memory.owner());
    memory.as<int>()[999] = 1;
    memory = {};
    EXPECT_FALSE(watch.expired());
    auto work = group->all_reduce(buffer, {.async_op = true});
    buffer = {};
    work.wait();
    EXPECT_EQ(static_cast<int*>(work.result()[0].data())[999], group->size());
  });
}

TEST_P(GroupMemoryOf, TooMuchIsAnError) {
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto before = group->allocate(4096);
    before.as<int>()[0] = 3;
    constexpr auto most = std::numeric_limits<std::size_t>::max();
    for (const std::size_t bytes : {std::size_t{1} << 50U, std::size_t{1} << 62U, most / 2, most - 4096}) {
      EXPECT_THROW(group->allocate(bytes), Error) << bytes;
    }
    EXPECT_THROW(group->allocate(most), Error);
    EXPECT_THROW((std::vector<double, Allocator<double>>(std::size_t{1} << 55U, Allocator<double>(group))), Error);
    const auto after = group->allocate(4096);
    after.as<int>()[0] = 1;
    group->all_reduce(after.as<int>());
    EXPECT_EQ(after.as<int>()[0], group->size());
    EXPECT_EQ(before.as<int>()[0], 3);
  });
}

TEST_P(GroupMemoryOf, NothingIsFine) {
  GetParam().run([](const ProcessGroupPtr& group) {
    const auto memory = group->allocate(0);
    EXPECT_EQ(memory.bytes(), 0U);
    EXPECT_TRUE(memory.as<int>().empty());
    group->all_reduce(memory.as<int>());
    const GroupMemory none;
    EXPECT_EQ(none.data(), nullptr);
    EXPECT_EQ(none.bytes(), 0U);
  });
}

TEST_P(GroupMemoryOf, AllocatedAndFreedFromManyThreads) {
  GetParam().run([](const ProcessGroupPtr& group) {
    as_threads(4, [&](int thread) {
      for (int i = 1; i < 50; ++i) {
        const auto memory = group->allocate(static_cast<std::size_t>(i) * 1000);
        const auto x = memory.as<std::uint8_t>();
        ASSERT_EQ(x[x.size() - 1], 0);
        std::fill(x.begin(), x.end(), static_cast<std::uint8_t>(thread + 1));
        ASSERT_EQ(x[0], thread + 1);
      }
    });
    group->barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, GroupMemoryOf,
                         ::testing::ValuesIn(on_backends({threads(1), threads(3), processes(2), processes(3)})),
                         [](const auto& each) { return to_string(each.param); });

TEST(GroupMemoryOfFake, WorksTheSame) {
  const auto group =
      new_group("fake", patient, "cpu", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = 2});
  const auto memory = group->allocate(100);
  EXPECT_THAT(memory.as<std::uint8_t>(), Each(0));
  EXPECT_THROW(group->allocate(std::size_t{1} << 60U), Error);
}

}  // namespace
}  // namespace cohort::test
