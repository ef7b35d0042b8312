// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/errand.h"

#include <cohort/log.h>

#include <pthread.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <utility>

#include "core/log_format.h"
#include "core/start_thread.h"

namespace cohort {

namespace {

struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
};

}  // namespace

bool Errand::run(std::function<void()> work, std::chrono::milliseconds at_most) {
  const auto progress = std::make_shared<Progress>();
  const std::lock_guard turn(mutex_);
  if (thread_.joinable()) thread_.join();
  thread_ = start_thread([progress, work = std::move(work)] {
    ::pthread_setname_np(::pthread_self(), "cohort-errand");
    try {
      work();
    } catch (const std::exception& e) {
      log_debug("at the end of a group: {}", e.what());
    }
    const std::lock_guard lock(progress->mutex);
    progress->is_done = true;
    progress->changed.notify_all();
  });
  std::unique_lock lock(progress->mutex);
  return progress->changed.wait_for(lock, at_most, [&] { return progress->is_done; });
}

void Errand::finish() {
  const std::lock_guard turn(mutex_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace cohort
