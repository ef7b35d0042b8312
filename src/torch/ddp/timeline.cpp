// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/timeline.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <utility>

namespace cohort::ddp {

namespace {
constexpr auto* communication = "communication";
constexpr std::size_t most_ended_early = 64;

std::string bucket_name(std::size_t bucket, std::size_t bytes) {
  return fmt::format("bucket {} ({:.2f} MiB)", bucket, static_cast<double>(bytes) / 1048576.0);
}
}  // namespace

void Timeline::add_span(std::string name, const char* track, Clock::time_point begin, Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({.name = std::move(name), .track = track, .begin = begin, .end = end});
}

void Timeline::iteration_ended(const IterationTimes& times) {
  if (!times.forward_start || !times.backward_start || !times.backward_end || !times.comm_end) return;
  add_span("forward", "compute", *times.forward_start, *times.backward_start);
  add_span("backward", "compute", *times.backward_start, *times.backward_end);
  add_span("wait for the rest", "compute", *times.backward_end, *times.comm_end);
}

void Timeline::bucket_launched(std::size_t bucket, std::size_t bytes, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (const auto ended = ended_early_.extract(sequence)) {
    auto span = ended.mapped();
    span.name = bucket_name(bucket, bytes);
    spans_.push_back(std::move(span));
    return;
  }
  launched_[sequence] = {.bucket = bucket, .bytes = bytes};
}

void Timeline::bucket_reduced(std::size_t bucket, std::size_t bytes, Clock::time_point begin, Clock::time_point end) {
  add_span(bucket_name(bucket, bytes), communication, begin, end);
}

void Timeline::watch(ProcessGroup& group) {
  group.add_post_hook([weak = weak_from_this()](const HookEvent& event) {
    if (const auto timeline = weak.lock()) timeline->operation_ended(event);
  });
}

void Timeline::operation_ended(const HookEvent& event) {
  if (event.op != OpType::all_reduce) return;
  const std::lock_guard lock(mutex_);
  Span span{.track = communication, .begin = event.started, .end = event.finished};
  const auto launched = launched_.extract(event.sequence);
  if (!launched) {
    // The operation of a bucket that is about to be reported, or of somebody else.
    ended_early_[event.sequence] = std::move(span);
    if (ended_early_.size() > most_ended_early) ended_early_.erase(ended_early_.begin());
    return;
  }
  span.name = bucket_name(launched.mapped().bucket, launched.mapped().bytes);
  spans_.push_back(std::move(span));
}

std::string Timeline::to_chrome_json(int rank, const std::vector<Contents>& buckets) const {
  const std::lock_guard lock(mutex_);
  nlohmann::json events = nlohmann::json::array();
  Clock::time_point first = Clock::time_point::max();
  for (const auto& each : spans_) first = std::min(first, each.begin);
  const auto microseconds = [](Clock::duration time) {
    return std::chrono::duration<double, std::micro>(time).count();
  };
  for (const auto& each : spans_) {
    events.push_back({{"name", each.name},
                      {"ph", "X"},
                      {"pid", rank},
                      {"tid", each.track},
                      {"ts", microseconds(each.begin - first)},
                      {"dur", microseconds(each.end - each.begin)}});
  }
  nlohmann::json layout = nlohmann::json::array();
  for (const auto& bucket : buckets) {
    nlohmann::json parameters = nlohmann::json::array();
    for (const auto& [name, bytes] : bucket) parameters.push_back({{"name", name}, {"bytes", bytes}});
    layout.push_back(std::move(parameters));
  }
  return nlohmann::json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}, {"buckets", std::move(layout)}}
      .dump(1);
}

}  // namespace cohort::ddp
