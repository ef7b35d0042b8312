// SPDX-License-Identifier: BSD-3-Clause
//
// How the ranks of this folder's tests run: threads, of which there may be more than cores, and processes.
#pragma once

#include <cohort/cohort.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "support/expect_error.h"
#include "support/groups.h"

namespace cohort::test {

class OnEveryArrangement : public ::testing::TestWithParam<Ranks> {
 protected:
  static int size() { return GetParam().size; }
  static void run(const GroupBody& body) { GetParam().run(body); }
};

inline auto every_arrangement() {
  return ::testing::Values(Ranks{false, 1}, Ranks{false, 2}, Ranks{false, 3}, Ranks{false, 4}, Ranks{false, 5},
                           Ranks{false, 8}, Ranks{true, 1}, Ranks{true, 2}, Ranks{true, 3}, Ranks{true, 5});
}
/// For what needs somebody to talk to.
inline auto arrangements_of_several() {
  return ::testing::Values(Ranks{false, 2}, Ranks{false, 3}, Ranks{false, 5}, Ranks{true, 2}, Ranks{true, 3});
}
inline std::string arrangement_name(const ::testing::TestParamInfo<Ranks>& each) {
  return to_string(each.param);
}

/// `call` is refused with an E that says `text`, before anything happened: no sequence number is taken.
template <class E>
void expect_refused(ProcessGroup& group, const std::string& text, const std::function<void()>& call) {
  const auto before = group.sequence_number();
  EXPECT_THAT(message_of<E>(call), ::testing::HasSubstr(text));
  EXPECT_EQ(group.sequence_number(), before) << text;
}

/// After something was refused.
inline void expect_works(ProcessGroup& group) {
  std::int32_t ranks = 1;
  group.all_reduce(std::span(&ranks, 1));
  EXPECT_EQ(ranks, group.size());
}

inline std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

}  // namespace cohort::test
