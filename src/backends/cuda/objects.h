// SPDX-License-Identifier: BSD-3-Clause
//
// Owners of what the driver hands out. None outlives its Context, which each holds.
#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/cuda/driver.h"

namespace cohort::cuda {

/// A device's primary context: the one that the CUDA runtime, and with it everybody else in the process, uses.
class Context {
 public:
  /// A ValueError for a device that is not there.
  Context(const Driver& driver, int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Driver& driver() const noexcept { return driver_; }
  int device() const noexcept { return device_; }
  void* get() const noexcept { return context_; }
  /// The device whose context is current on this thread; 0, which is what the runtime would take, where none is.
  static int current_device(const Driver& driver);

 private:
  const Driver& driver_;
  const int device_;
  void* context_ = nullptr;
};
using ContextPtr = std::shared_ptr<const Context>;

/// Makes a context current for a scope. Costs one call of the driver where it is already, as it mostly is.
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

/// Lets this thread ask about events for a scope, whatever is being captured: in CUDA's global mode a capture anywhere
/// in the process forbids it to everybody, and is broken by it.
class BesideCaptures {
 public:
  explicit BesideCaptures(const Driver& driver) : driver_(driver) { driver_.exchange_capture_mode(&mode_); }
  ~BesideCaptures() { driver_.exchange_capture_mode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  const Driver& driver_;
  int mode_ = 2;  ///< CU_STREAM_CAPTURE_MODE_RELAXED; afterwards what there was before
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

/// Events to use again: making one costs microseconds, taking one from here some nanoseconds. Any thread.
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

}  // namespace cohort::cuda
