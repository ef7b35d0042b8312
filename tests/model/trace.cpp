// SPDX-License-Identifier: BSD-3-Clause
#include "model/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace cohort::model {

namespace {

const char* order_name(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed:
      return "relaxed";
    case std::memory_order_consume:
      return "consume";
    case std::memory_order_acquire:
      return "acquire";
    case std::memory_order_release:
      return "release";
    case std::memory_order_acq_rel:
      return "acq_rel";
    case std::memory_order_seq_cst:
      return "seq_cst";
  }
  return "";
}

}  // namespace

std::string number(Bits value) {
  return std::to_string(static_cast<std::int64_t>(value));
}

std::string Trace::place(Place place) const {
  const auto& names = place.atomic ? atomics_ : plains_;
  const auto named = names.find(place.location);
  if (named != names.end()) return named->second;
  return fmt::format("{}#{}", place.atomic ? "atomic" : "plain", place.location);
}

std::string Trace::text() const {
  std::size_t widest = 0;
  for (const auto& thread : threads_) widest = std::max(widest, thread.size());
  std::string out;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const auto& event = events_[i];
    if (event.thread == main_thread) continue;
    out += fmt::format("{:5}  {:{}}  {}", i + 1, threads_[event.thread], widest, event.operation);
    if (event.place) out += " " + place(*event.place);
    if (event.before) out += fmt::format(" {} ->", number(*event.before));
    if (event.value) out += fmt::format(" {}", number(*event.value));
    if (event.order) out += fmt::format(" ({})", order_name(*event.order));
    if (event.newest) out += fmt::format(", old: the newest is {}", number(*event.newest));
    if (*event.remark != '\0') out += fmt::format(", {}", event.remark);
    out += '\n';
  }
  return out;
}

}  // namespace cohort::model
