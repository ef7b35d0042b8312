// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/cohort.h>
#include <gtest/gtest.h>

#include <numeric>

#include "support/groups.h"

namespace cohort::test {
namespace {

class Smoke : public ::testing::TestWithParam<Ranks> {};

TEST_P(Smoke, AllReduce) {
  GetParam().run([](const ProcessGroupPtr& pg) {
    for (const std::size_t n : {0UL, 1UL, 8UL, 100UL, 1000UL, 5000UL, 100000UL, 3000001UL}) {
      std::vector<float> x(n);
      std::iota(x.begin(), x.end(), static_cast<float>(pg->rank()));
      pg->all_reduce(x);
      const auto ranks = static_cast<float>(pg->size());
      for (std::size_t i = 0; i < n && i < 100; ++i) {
        ASSERT_EQ(x[i], ranks * static_cast<float>(i) + ranks * (ranks - 1) / 2) << n << " " << i;
      }
      auto memory = pg->allocate(n * 4);
      auto y = memory.as<float>();
      std::iota(y.begin(), y.end(), static_cast<float>(pg->rank()));
      pg->all_reduce(y);
      for (std::size_t i = 0; i < n && i < 100; ++i) {
        ASSERT_EQ(y[i], ranks * static_cast<float>(i) + ranks * (ranks - 1) / 2) << n << " " << i;
      }
    }
  });
}

TEST_P(Smoke, SendRecv) {
  GetParam().run([](const ProcessGroupPtr& pg) {
    const int next = (pg->rank() + 1) % pg->size();
    const int previous = (pg->rank() + pg->size() - 1) % pg->size();
    for (const std::size_t n : {0UL, 1UL, 8UL, 100UL, 5000UL, 100000UL}) {
      std::vector<int> out(n, pg->rank());
      std::vector<int> in(n, -1);
      auto sending = pg->send(out, next, {.tag = 3, .async_op = true});
      pg->recv(in, previous, {.tag = 3});
      sending.wait();
      EXPECT_EQ(in, std::vector<int>(n, previous));
    }
  });
}

TEST_P(Smoke, Everything) {
  GetParam().run([](const ProcessGroupPtr& pg) {
    const auto n = pg->size();
    const auto un = static_cast<std::size_t>(n);
    for (const std::size_t count : {1UL, 3UL, 4000UL, 200000UL}) {
      std::vector<int> mine(count, pg->rank());
      std::vector<int> all(count * un, -1);
      pg->all_gather(all, mine);
      for (std::size_t r = 0; r < un; ++r) ASSERT_EQ(all[r * count + count / 2], static_cast<int>(r));
      for (int root = 0; root < n; ++root) {
        std::vector<int> b(count, pg->rank());
        pg->broadcast(b, {.root = root});
        ASSERT_EQ(b[count - 1], root);
        std::vector<int> red(count, pg->rank() + 1);
        pg->reduce(red, {.root = root});
        if (pg->rank() == root) {
          ASSERT_EQ(red[count / 3], n * (n + 1) / 2);
        }
      }
      std::vector<int> piece(count, -1);
      pg->reduce_scatter(piece, all);
      ASSERT_EQ(piece[count - 1], n * pg->rank());
      std::vector<int> to(count * un);
      for (std::size_t r = 0; r < un; ++r)
        std::fill_n(to.begin() + static_cast<long>(r * count), count, pg->rank() * 100 + static_cast<int>(r));
      std::vector<int> from(count * un, -1);
      pg->all_to_all(from, to);
      for (std::size_t r = 0; r < un; ++r)
        ASSERT_EQ(from[r * count + count / 2], static_cast<int>(r) * 100 + pg->rank());
      pg->barrier();
    }
    EXPECT_EQ(pg->all_gather_bytes(std::string(static_cast<std::size_t>(pg->rank()) * 5000, 'x')).back().size(),
              (un - 1) * 5000);
    EXPECT_EQ(pg->broadcast_bytes(pg->rank() == 0 ? "hello" : ""), "hello");
    pg->monitored_barrier();
    const auto half = pg->split_group({0});
    EXPECT_EQ(half != nullptr, pg->rank() == 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Smoke,
                         ::testing::Values(Ranks{false, 1}, Ranks{false, 2}, Ranks{false, 3}, Ranks{false, 8},
                                           Ranks{true, 1}, Ranks{true, 2}, Ranks{true, 4}, Ranks{true, 5}),
                         [](const auto& each) { return to_string(each.param); });

}  // namespace
}  // namespace cohort::test
