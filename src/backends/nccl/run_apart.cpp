// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/run_apart.h"

#include <cohort/log.h>

#include <fmt/format.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/immortal.h"
#include "core/start_thread.h"

namespace cohort::nccl {

namespace {

struct Signal {
  std::mutex mutex{};
  std::condition_variable changed{};
  bool is_done = false;
};

/// Process-wide and thread-safe: threads inside a call that did not return. They cannot be joined, not even at exit.
struct Lost {
  std::mutex mutex{};
  std::vector<std::thread> threads{};
};

}  // namespace

bool run_apart(std::function<void()> body, Deadline deadline) {
  const auto signal = std::make_shared<Signal>();
  auto thread = start_thread([signal, body = std::move(body)]() mutable {
    try {
      body();
    } catch (const std::exception& e) {
      log(LogLevel::error, fmt::format("nccl: {}", e.what()));
    }
    body = nullptr;  // what it holds goes before anybody is told
    const std::lock_guard lock(signal->mutex);
    signal->is_done = true;
    signal->changed.notify_all();
  });
  {
    std::unique_lock lock(signal->mutex);
    const auto is_done = [&] { return signal->is_done; };
    if (deadline.is_never()) signal->changed.wait(lock, is_done);
    if (signal->changed.wait_until(lock, deadline.when(), is_done)) {
      lock.unlock();
      thread.join();
      return true;
    }
  }
  static Immortal<Lost> lost;
  const std::lock_guard lock(lost->mutex);
  lost->threads.push_back(std::move(thread));
  return false;
}

}  // namespace cohort::nccl
