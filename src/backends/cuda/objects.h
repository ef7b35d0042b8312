// SPDX-License-Identifier: BSD-3-Clause
//
// Owners of the driver's objects. None outlives its Context, because each holds a reference to it.
#pragma once

#include <cohort/operation.h>

#include <bit>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/driver.h"

namespace cohort::cuda {

/// The primary context of a device: the one that the CUDA runtime, and thereby everything else in the process, uses.
class Context {
 public:
  /// Throws ValueError for a device that does not exist.
  Context(const Driver& driver, int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Driver& driver() const noexcept { return driver_; }
  int device() const noexcept { return device_; }
  void* get() const noexcept { return context_; }
  /// The device whose context is current on this thread; 0, the runtime's default, if there is none.
  static int current_device(const Driver& driver);

 private:
  const Driver& driver_;
  const int device_;
  void* context_ = nullptr;
};
using ContextPtr = std::shared_ptr<const Context>;

/// Makes a context current for a scope. Costs one call of the driver if it is current already, which is the common
/// case.
class Current {
 public:
  explicit Current(const Context& context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  void* before_ = nullptr;
  bool has_changed_ = false;
};

/// Allows this thread to query events for a scope, whatever is being captured: in CUDA's global mode a capture anywhere
/// in the process forbids such queries to every thread, and is invalidated by them.
class BesideCaptures {
 public:
  explicit BesideCaptures(const Driver& driver) : driver_(driver) { driver_.exchange_capture_mode(&mode_); }
  ~BesideCaptures() { driver_.exchange_capture_mode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  const Driver& driver_;
  int mode_ = 2;  ///< CU_STREAM_CAPTURE_MODE_RELAXED; after the exchange, the mode to restore
};

class Stream {
 public:
  Stream(ContextPtr context, bool high_priority);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  void* get() const noexcept { return stream_; }

 private:
  ContextPtr context_;
  void* stream_ = nullptr;
};

class Event {
 public:
  Event(ContextPtr context, bool with_timing);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void* get() const noexcept { return event_; }

 private:
  ContextPtr context_;
  void* event_ = nullptr;
};
using EventPtr = std::unique_ptr<Event>;

/// A pool of events: creating one costs microseconds, taking one from the pool some nanoseconds. Thread-safe.
class EventPool {
 public:
  EventPool(ContextPtr context, bool with_timing) : context_(std::move(context)), with_timing_(with_timing) {}
  EventPtr take();
  void give_back(EventPtr event);

 private:
  ContextPtr context_;
  const bool with_timing_;
  std::mutex mutex_;
  std::vector<EventPtr> free_;
};

/// Device memory.
class Memory {
 public:
  Memory(ContextPtr context, std::size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const noexcept { return std::bit_cast<std::byte*>(address_); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  ContextPtr context_;
  Address address_ = 0;
  std::size_t bytes_;
};

/// A ValueError if a buffer of the operation is on another device than the context's.
void check_devices(const Context& context, const Operation& op, const std::string& group);

}  // namespace cohort::cuda
