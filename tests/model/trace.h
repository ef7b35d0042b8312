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

/// Where an event happened: atomic and plain locations are numbered apart.
struct Place {
  bool atomic = true;
  LocationId location = 0;
};

struct Event {
  ThreadId thread = main_thread;
  const char* operation = "";
  std::optional<Place> place{};
  std::optional<Bits> value{};
  std::optional<Bits> before{};  ///< what a read-modify-write replaced
  std::optional<std::memory_order> order{};
  std::optional<Bits> newest{};  ///< what a load could have read had it been up to date
  const char* remark = "";
};

/// What an execution did, written down cheaply and put into words only if somebody wants to read it.
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

/// Bits as a number, negative where the value was.
std::string number(Bits value);

}  // namespace cohort::model
