// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/timeline.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <utility>

namespace cohort::ddp {

namespace {
constexpr auto* communication = "communication";

std::string bucket_name(std::size_t bucket, std::size_t bytes) {
  return fmt::format("bucket {} ({:.2f} MiB)", bucket, static_cast<double>(bytes) / 1048576.0);
}
}  // namespace

void Timeline::span(std::string name, const char* track, Clock::time_point begin, Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({.name = std::move(name), .track = track, .begin = begin, .end = end});
}

void Timeline::bucket_launched(std::size_t bucket, std::size_t bytes, std::uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  if (const auto ended = ended_early_.extract(sequence)) {
    auto span = ended.mapped();
    span.name = bucket_name(bucket, bytes);
    spans_.push_back(std::move(span));
    return;
  }
  launched_[sequence] = {.bucket = bucket, .bytes = bytes, .when = Clock::now()};
}

void Timeline::operation_ended(const HookEvent& event) {
  if (event.op != OpType::all_reduce) return;
  const std::lock_guard lock(mutex_);
  Span span{.track = communication, .begin = event.started, .end = event.finished};
  const auto launched = launched_.extract(event.sequence);
  if (!launched) {
    ended_early_[event.sequence] = std::move(span);
    return;
  }
  span.name = bucket_name(launched.mapped().bucket, launched.mapped().bytes);
  spans_.push_back(std::move(span));
}

std::string Timeline::to_chrome_json(int rank) const {
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
  return nlohmann::json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump(1);
}

}  // namespace cohort::ddp
