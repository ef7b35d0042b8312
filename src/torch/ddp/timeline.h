// SPDX-License-Identifier: BSD-3-Clause
//
// Records when each iteration computed and when each of its buckets was reduced, to show how far communication and
// computation overlap.
#pragma once

#include <cohort/process_group.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cohort::ddp {

/// When the parts of an iteration happened.
struct IterationTimes {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> forward_start{};
  std::optional<Clock::time_point> backward_start{};
  std::optional<Clock::time_point> backward_end{};
  std::optional<Clock::time_point> comm_start{};
  std::optional<Clock::time_point> comm_end{};
};

/// May be called from any thread.
class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  using Clock = IterationTimes::Clock;

  void iteration_ended(const IterationTimes& times);
  /// A bucket is reduced by the group's operation with this sequence number, whose times operation_ended() records.
  void bucket_launched(std::size_t bucket, std::size_t bytes, std::uint64_t sequence);
  /// A communication hook has reduced the bucket.
  void bucket_reduced(std::size_t bucket, std::size_t bytes, Clock::time_point begin, Clock::time_point end);
  /// Records the times of this group's operations for as long as the timeline lives.
  void watch(ProcessGroup& group);
  /// Name and bytes of each parameter in a bucket.
  using Contents = std::vector<std::pair<std::string, std::size_t>>;
  /// In Chrome's trace format, for Perfetto or chrome://tracing, with the current contents of the buckets beside it.
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
  void add_span(std::string name, const char* track, Clock::time_point begin, Clock::time_point end);
  void operation_ended(const HookEvent& event);

  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::map<std::uint64_t, Launched> launched_;
  std::map<std::uint64_t, Span> ended_early_;  ///< before their bucket was known, by sequence number
};

}  // namespace cohort::ddp
