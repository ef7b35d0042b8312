// SPDX-License-Identifier: BSD-3-Clause
//
// How the ranks of this folder's tests run: as threads, possibly more than there are cores, and as processes.
#pragma once

#include <cohort/cohort.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "support/expect_error.h"
#include "support/groups.h"

namespace cohort::test {

class OnEveryArrangement : public ::testing::TestWithParam<Ranks> {
 protected:
  static int size() { return GetParam().size; }
  static void run(const GroupBody& body) { GetParam().run(body); }
};

inline std::vector<Ranks> arrangements(bool with_one) {
  using Are = Ranks::Are;
  const auto backend = backend_under_test();
  std::vector<Ranks> all;
  const auto add = [&](Are are, std::initializer_list<int> sizes, const std::string& on, int hosts = 0) {
    for (const int size : sizes) {
      if (size > 1 || with_one) all.push_back({.are = are, .size = size, .backend = on, .hosts = hosts});
    }
  };
  if (backend.empty()) {
    with_one ? add(Are::threads, {1, 2, 3, 4, 5, 8}, "thread") : add(Are::threads, {2, 3, 5}, "thread");
    with_one ? add(Are::processes, {1, 2, 3, 5}, "shm") : add(Are::processes, {2, 3}, "shm");
  } else if (is_launched()) {
    add(Are::launched, {launched_size()}, backend);
  } else {
    // Running all of them takes minutes, so by default only those that differ most are run.
    const bool is_thorough = std::getenv("COHORT_TEST_THOROUGH") != nullptr;
    if (backend == "hybrid") {
      if (is_thorough) add(Are::processes, {1, 2, 5}, backend);
      is_thorough ? add(Are::processes, {2, 4, 5}, backend, 2) : add(Are::processes, {5}, backend, 2);
      if (is_thorough) add(Are::processes, {5}, backend, 3);
    } else {
      is_thorough ? add(Are::processes, {1, 2, 3, 5}, backend) : add(Are::processes, {3}, backend);
    }
  }
  return all;
}

inline auto every_arrangement() {
  return ::testing::ValuesIn(arrangements(true));
}
/// For tests that need at least one peer.
inline auto arrangements_of_several() {
  return ::testing::ValuesIn(arrangements(false));
}
inline std::string arrangement_name(const ::testing::TestParamInfo<Ranks>& each) {
  return to_string(each.param);
}

/// Expects that `call` is refused with an E whose message contains `text` before anything happens: no sequence number
/// is taken.
template <class E>
void expect_refused(ProcessGroup& group, const std::string& text, const std::function<void()>& call) {
  const auto before = group.sequence_number();
  EXPECT_THAT(message_of<E>(call), ::testing::HasSubstr(text));
  EXPECT_EQ(group.sequence_number(), before) << text;
}

/// Called after an operation was refused.
inline void expect_works(ProcessGroup& group) {
  std::int32_t ranks = 1;
  group.all_reduce(std::span(&ranks, 1));
  EXPECT_EQ(ranks, group.size());
}

inline std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

}  // namespace cohort::test
