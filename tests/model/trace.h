// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/memory.h"

namespace cohort::model {

/// Where an event happened; atomic and plain locations are numbered separately.
struct Place {
  bool atomic = true;
  LocationId location = 0;
};

struct Event {
  ThreadId thread = main_thread;
  const char* operation = "";
  std::optional<Place> place{};
  std::optional<Bits> value{};
  std::optional<Bits> before{};  ///< the value that a read-modify-write replaced
  std::optional<std::memory_order> order{};
  std::optional<Bits> newest{};  ///< the value that a load would have returned had it been up to date
  const char* remark = "";
};

/// The record of an execution, stored cheaply and turned into text only on request.
class Trace {
 public:
  /// Returns the event's number, as text() shows it.
  std::size_t add(const Event& event) {
    events_.push_back(event);
    return events_.size();
  }

  void name_thread(std::string name) { threads_.push_back(std::move(name)); }
  void name_atomic(LocationId location, std::string name) { atomics_[location] = std::move(name); }
  void name_plain(LocationId location, std::string name) { plains_[location] = std::move(name); }

  const std::string& thread(ThreadId thread) const { return threads_[thread]; }
  std::string place(Place place) const;
  std::string text() const;

 private:
  std::vector<Event> events_;
  std::vector<std::string> threads_;
  std::map<LocationId, std::string> atomics_;
  std::map<LocationId, std::string> plains_;
};

/// The bits as a number, negative if the value was.
std::string number(Bits value);

}  // namespace cohort::model
