// SPDX-License-Identifier: BSD-3-Clause
//
// While a group is made: notices that its store was interrupted, because another member has died (group/assembly.h), and
// ends what Gloo waits for, which knows nothing of the store.
#pragma once

#include <cohort/error.h>
#include <cohort/store.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "core/start_thread.h"

namespace cohort::gloo {

class StoreProbe {
 public:
  StoreProbe(StorePtr store, std::function<void()> on_interrupt)
      : store_(std::move(store)), on_interrupt_(std::move(on_interrupt)), thread_(start_thread([this] { watch(); })) {}
  ~StoreProbe() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    over_.notify_one();
    thread_.join();
  }
  StoreProbe(const StoreProbe&) = delete;
  StoreProbe& operator=(const StoreProbe&) = delete;

 private:
  static constexpr std::chrono::milliseconds look_every{50};
  static constexpr std::chrono::seconds patience{5};

  void watch() {
    std::unique_lock lock(mutex_);
    while (!over_.wait_for(lock, look_every, [this] { return is_over_; })) {
      lock.unlock();
      try {
        store_->check({"proof"}, patience);
      } catch (const StoreTimeoutError&) {  // another thread waits on this connection, and is interrupted with it
      } catch (const Error&) {
        return on_interrupt_();
      }
      lock.lock();
    }
  }

  StorePtr store_;
  std::function<void()> on_interrupt_;
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace cohort::gloo
