// SPDX-License-Identifier: BSD-3-Clause
//
// Ranks in processes of their own, which are all asked the same question at once. Each answers with a plain value, such
// as the times at which it began and ended: all processes of a host share the steady clock.
//
//   RankProcesses<Question> ranks(8, [](int rank) {
//     auto group = ...;                                        // in the rank's process
//     return [group](const Question& question) { return timed([&] { group->barrier(); }); };
//   });
//   slowest(ranks.ask({...}));                                 // in seconds
//
// What a rank made lives until the last answer has arrived, so that the end of one rank does not disturb another's
// time.
#pragma once

#include <cohort/error.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "measure/child.h"

namespace cohort::measure {

using Clock = std::chrono::steady_clock;

struct Interval {
  Clock::time_point begin;
  Clock::time_point end;
};

template <class Action>
Interval timed(const Action& action) {
  const auto begin = Clock::now();
  action();
  return {begin, Clock::now()};
}

inline double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}
inline double seconds_since(Clock::time_point start) {
  return seconds(Clock::now() - start);
}

/// The longest time that a rank took, in seconds.
inline double slowest(const std::vector<Interval>& intervals) {
  Clock::duration longest{};
  for (const auto& each : intervals) longest = std::max(longest, each.end - each.begin);
  return seconds(longest);
}
/// From the earliest beginning to the latest end, in seconds.
inline double span(const std::vector<Interval>& intervals) {
  auto whole = intervals.front();
  for (const auto& each : intervals) whole = {std::min(whole.begin, each.begin), std::max(whole.end, each.end)};
  return seconds(whole.end - whole.begin);
}

template <class Question, class Reply = Interval>
class RankProcesses {
 public:
  using Answer = std::function<Reply(const Question&)>;

  /// Returns when every rank is ready to be asked.
  RankProcesses(int count, const std::function<Answer(int rank)>& make) {
    for (int rank = 0; rank < count; ++rank) {
      processes_.emplace_back([&make, rank](Channel& parent) {
        auto answer = make(rank);
        parent.send(true);
        while (parent.receive<bool>()) parent.send(answer(parent.receive<Question>()));
      });
    }
    for (auto& process : processes_) process.channel().template receive<bool>();
  }
  ~RankProcesses() {
    for (auto& process : processes_) {
      try {
        process.channel().send(false);
      } catch (const Error&) {
        // It ended early and has printed why.
      }
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  std::vector<Reply> ask(const Question& question) {
    for (auto& process : processes_) {
      process.channel().send(true);
      process.channel().send(question);
    }
    std::vector<Reply> replies;
    for (auto& process : processes_) replies.push_back(process.channel().template receive<Reply>());
    return replies;
  }

 private:
  std::vector<Child> processes_;
};

}  // namespace cohort::measure
