// SPDX-License-Identifier: BSD-3-Clause
// A rank that may open too few files, map too little memory or write too little: every rank gets a group that works, or
// an error of the library; no rank crashes, and none waits past the deadline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "faults/fault_scenario.h"
#include "faults/operations.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool has_shadow_memory = true;
#else
constexpr bool has_shadow_memory = false;
#endif

class LimitsTest : public FaultTest {
 protected:
  struct Outcome {
    bool works = false;
    std::vector<Word> words{};  ///< the reports of all ranks
  };

  /// Makes a group of three in which one rank has a limit.
  Outcome run(int limited, const std::function<void()>& limit) {
    const auto body = [&](Member& me) {
      const auto store = me.open_store();
      // The test's own memory is allocated first, so that later failures are the library's.
      std::vector<float> mine(Scratch::large);
      std::vector<float> received(Scratch::large);
      if (me.rank() == limited) limit();
      me.attempt("group", [&] {
        const auto group = me.join(1500ms, store);
        group->all_reduce(std::span(mine).first(4));
        group->all_reduce(mine);
        auto sending = group->send(mine, (me.rank() + 1) % me.size(), {.async_op = true});
        group->recv(received, (me.rank() + me.size() - 1) % me.size());
        sending.wait();
        group->all_reduce(mine, {.async_op = true}).wait();
        group->barrier();
      });
    };
    FaultScenario scenario(store(), 3, body, 8s);
    const auto start = Clock::now();
    Outcome outcome{.works = true, .words = scenario.hear_all("group")};
    for (const auto& word : outcome.words) {
      outcome.works = outcome.works && word.type.empty();
      EXPECT_LT(milliseconds_between(start, word.when), 2000) << word;
      EXPECT_NE(word.type, "system_error") << word;
    }
    bool is_named = outcome.works;
    for (int rank = 0; rank < scenario.size() && !outcome.works; ++rank) {
      const auto& word = outcome.words[static_cast<std::size_t>(rank)];
      EXPECT_NE(word.type, "") << "all or nobody: rank " << rank;
      if (rank == limited) {
        EXPECT_NE(word.type, "PeerLostError") << "the limit is its own: " << word;
      } else {
        // The rank that got its error first has left when another one checks, and is named there.
        EXPECT_GE(word.at_fault, 0) << word;
        EXPECT_NE(word.at_fault, rank) << word;
        is_named = is_named || word.at_fault == limited;
      }
    }
    EXPECT_TRUE(is_named) << "one at least heard of rank " << limited;
    scenario.expect_end();
    return outcome;
  }

  static void set_limit(int resource, rlim_t value) {
    const rlimit limit{.rlim_cur = value, .rlim_max = value};
    if (::setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) throw std::runtime_error("setrlimit");
  }
  static rlim_t address_space() {
    std::ifstream numbers("/proc/self/statm");
    rlim_t pages = 0;
    numbers >> pages;
    return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  }
  static void report(const std::string& title, const Outcome& outcome) {
    std::cout << "[  scenario   ] " << title << ":";
    for (const auto& word : outcome.words) std::cout << "\n    " << word;
    std::cout << "\n";
  }
};

TEST_F(LimitsTest, TooFewDescriptors) {
  if (has_shadow_memory) GTEST_SKIP() << "sanitizers need descriptors of their own";
  for (const int limited : {0, 2}) {
    bool works = false;
    for (rlim_t spare = 0; spare < 24 && !works; ++spare) {
      const auto title = std::to_string(spare) + " descriptors left at rank " + std::to_string(limited);
      SCOPED_TRACE(title);
      const auto outcome = run(limited, [&] {
        const int next = ::dup(0);
        ::close(next);
        set_limit(RLIMIT_NOFILE, static_cast<rlim_t>(next) + spare);
      });
      works = outcome.works;
      report(title, outcome);
    }
    EXPECT_TRUE(works);
  }
}

TEST_F(LimitsTest, TooLittleAddressSpace) {
  if (has_shadow_memory) GTEST_SKIP() << "sanitizers map terabytes";
  for (const int limited : {0, 2}) {
    for (rlim_t megabytes = 24; megabytes < 120; megabytes += 6) {
      const auto title = std::to_string(megabytes) + " MiB of address space at rank " + std::to_string(limited);
      SCOPED_TRACE(title);
      report(title, run(limited, [&] { set_limit(RLIMIT_AS, megabytes << 20U); }));
    }
  }
}

/// Asynchronous operations start a thread; if none can be started they fail, but nothing else does.
TEST_F(LimitsTest, NoRoomForAThread) {
  if (has_shadow_memory) GTEST_SKIP() << "sanitizers map terabytes";
  const std::pair<const char*, void (*)(ProcessGroup&, std::vector<float>&)> operations[] = {
      {"all_reduce", [](ProcessGroup& group, auto& data) { group.all_reduce(data, {.async_op = true}).wait(); }},
      {"send", [](ProcessGroup& group, auto& data) { group.send(data, 1, {.async_op = true}).wait(); }},
      {"recv", [](ProcessGroup& group, auto& data) { group.recv(data, 1, {.async_op = true}).wait(); }}};
  for (const auto& [name, operation] : operations) {
    SCOPED_TRACE(name);
    FaultScenario scenario(
        store(), 2,
        [&, run = operation](Member& me) {
          auto group = me.join(1s);
          std::vector<float> data(Scratch::large);
          group->all_reduce(data);
          me.say("made");
          if (me.rank() == 1) return me.await_go();
          set_limit(RLIMIT_AS, address_space() + (1U << 20U));
          me.attempt("operation", [&] { run(*group, data); });
          me.attempt("end", [&] { group.reset(); });
        },
        5s);
    scenario.hear_all("made");
    const auto word = scenario.hear(0, "operation");
    EXPECT_THAT(word.type, ::testing::Not(::testing::AnyOf("", "system_error"))) << word;
    scenario.hear(0, "end");
    scenario.go(1);
    scenario.expect_end();
  }
}

TEST_F(LimitsTest, TooSmallFiles) {
  for (const int limited : {0, 2}) {
    for (const rlim_t kilobytes : {0U, 64U, 64U * 1024}) {
      const auto title = "files of " + std::to_string(kilobytes) + " KiB at rank " + std::to_string(limited);
      SCOPED_TRACE(title);
      report(title, run(limited, [&] { set_limit(RLIMIT_FSIZE, kilobytes << 10U); }));
    }
  }
}

}  // namespace
}  // namespace cohort::test
