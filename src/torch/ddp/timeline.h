// SPDX-License-Identifier: BSD-3-Clause
//
// When what happened in an iteration, bucket by bucket: to see communication overlap computation.
#pragma once

#include <cohort/process_group.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cohort::ddp {

/// Any thread.
class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  using Clock = std::chrono::steady_clock;

  void span(std::string name, const char* track, Clock::time_point begin, Clock::time_point end);
  /// A bucket whose reduction has this number in the group; its time is told by operation_ended().
  void bucket_launched(std::size_t bucket, std::size_t bytes, std::uint64_t sequence);
  /// One that a communication hook took care of.
  void bucket_reduced(std::size_t bucket, std::size_t bytes, Clock::time_point begin, Clock::time_point end);
  /// Notes the times of this group's operations. Hooks of a group stay: it ends with the timeline.
  void watch(ProcessGroup& group);
  /// A parameter's name and bytes, for each of a bucket.
  using Contents = std::vector<std::pair<std::string, std::size_t>>;
  /// Chrome's trace format: open it in Perfetto or chrome://tracing. What the buckets hold now is told beside it.
  std::string to_chrome_json(int rank, const std::vector<Contents>& buckets) const;

 private:
  struct Span {
    std::string name{};
    std::string track{};
    Clock::time_point begin{};
    Clock::time_point end{};
  };
  struct Launched {
    std::size_t bucket = 0;
    std::size_t bytes = 0;
  };
  void operation_ended(const HookEvent& event);

  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::map<std::uint64_t, Launched> launched_;
  std::map<std::uint64_t, Span> ended_early_;  ///< before it was known whose they are
};

}  // namespace cohort::ddp
