// SPDX-License-Identifier: BSD-3-Clause
//
// abort() ends what the other processes wait in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "faults/fault_scenario.h"
#include "faults/operations.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr InterruptedOperation waits[] = {
    {"Barrier", [](ProcessGroup& group, Scratch&) { group.barrier(); }},
    {"AllReduce", [](ProcessGroup& group, Scratch& scratch) { group.all_reduce(scratch.data(Scratch::large)); }},
    {"WorkWait",
     [](ProcessGroup& group, Scratch& scratch) { group.all_reduce(scratch.data(4), {.async_op = true}).wait(); }},
    {"Recv", [](ProcessGroup& group, Scratch& scratch) { group.recv(scratch.data(4), 0); }},
    {"RecvFromAny", [](ProcessGroup& group, Scratch& scratch) { group.recv_any_source(scratch.data(4)); }},
    {"AsyncRecv",
     [](ProcessGroup& group, Scratch& scratch) { group.recv(scratch.data(4), 0, {.async_op = true}).wait(); }},
    {"LargeSend", [](ProcessGroup& group, Scratch& scratch) { group.send(scratch.data(Scratch::large), 0); }},
};

class AbortTest : public FaultTest, public ::testing::WithParamInterface<InterruptedOperation> {};

TEST_P(AbortTest, IsNoticedByPeersWithin100Milliseconds) {
  // Most of them, and none much later: on a busy machine a rank may wait for a processor longer than that.
  std::vector<std::int64_t> took;
  for (int attempt = 0; attempt < 5; ++attempt) {
    FaultScenario scenario(store(), 3, [&](Member& me) {
      const auto group = me.join(20s);
      Scratch scratch(*group);
      me.say("made");
      if (me.rank() == 0) {
        me.await_go();
        group->abort("enough");
        me.attempt("afterwards", [&] { group->barrier(); });
        return;
      }
      me.attempt("operation", [&] { GetParam().run(*group, scratch); });
      me.attempt("afterwards", [&] { group->barrier(); });
    });
    scenario.hear_all("made");
    std::this_thread::sleep_for(5ms * attempt);  // from a fresh wait to a long one
    const auto start = Clock::now();
    scenario.go(0);
    std::int64_t slowest = 0;
    for (const auto& word : scenario.hear_all("operation", 0)) {
      EXPECT_EQ(word.type, "AbortedError") << word;
      EXPECT_EQ(word.at_fault, 0) << word;
      EXPECT_THAT(word.text, HasSubstr("enough"));
      slowest = std::max(slowest, milliseconds_between(start, word.when));
    }
    for (const auto& word : scenario.hear_all("afterwards")) EXPECT_NE(word.type, "") << word;
    EXPECT_LT(slowest, 1000);
    took.push_back(slowest);
    scenario.expect_end();
  }
  std::sort(took.begin(), took.end());
  std::cout << "[  scenario   ] abort in " << GetParam().name << ": " << took.front() << " to " << took.back()
            << " ms\n";
  EXPECT_LT(took[took.size() / 2], 100);
}

INSTANTIATE_TEST_SUITE_P(All, AbortTest, ::testing::ValuesIn(waits),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace cohort::test
