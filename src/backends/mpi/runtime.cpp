// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/runtime.h"

#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/log.h>

#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <thread>
#include <utility>

#include "backends/mpi/selection.h"
#include "core/immortal.h"
#include "core/module.h"
#include "core/start_thread.h"

namespace cohort::mpi {

namespace {

struct BoundedRun {
  std::function<void()> blocking{};
  std::mutex mutex{};
  std::condition_variable changed{};
  bool is_done = false;
  std::exception_ptr error{};

  void run() {
    std::exception_ptr thrown;
    try {
      blocking();
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    error = thrown;
    is_done = true;
    changed.notify_all();
  }
};

/// Process-wide and thread-safe: threads that MPI keeps. They are not joined before they have ended (that could take
/// for ever), nor detached; the end of the process ends them.
class LateThreads {
 public:
  static LateThreads& instance() {
    static Immortal<LateThreads> threads;
    return *threads;
  }
  void keep(std::thread thread, std::shared_ptr<BoundedRun> run) {
    const std::lock_guard lock(mutex_);
    threads_.emplace_back(std::move(thread), std::move(run));
  }
  std::size_t join_ended() {
    const std::lock_guard lock(mutex_);
    std::erase_if(threads_, [](auto& each) {
      auto& [thread, run] = each;
      {
        const std::lock_guard of_run(run->mutex);
        if (!run->is_done) return false;
      }
      thread.join();
      return true;
    });
    return threads_.size();
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::thread, std::shared_ptr<BoundedRun>>> threads_;
};

Library& load_library() {
  const auto env = Env::read();
  const auto flavour = choose_flavour(env, loaded_version());
  const auto module = Module::of_engine(fmt::format("mpi_{}", to_string(flavour)), env.text("COHORT_MODULE_PATH"));
  const auto get = module.find<GetLibrary>(get_library_symbol);
  if (get == nullptr) {
    throw ValueError(
        fmt::format("backend mpi: this program runs under {0}, whose module is not here ({1}): install {2} "
                    "and build Cohort again",
                    title_of(flavour), module.why_not(), package_of(flavour)));
  }
  return *get();
}

}  // namespace

Runtime& Runtime::of_process(Deadline deadline) {
  static Immortal<Runtime> runtime(load_library());  // thrown: tried again next time
  static const struct AtExit {
    ~AtExit() { runtime->finish(); }
  } at_exit;
  runtime->start(deadline);
  return *runtime;
}

void Runtime::start(Deadline deadline) {
  const auto late = [] {
    return OperationTimeoutError("MPI_Init did not end: not all processes of the job have come", {.op = "new_group"});
  };
  const Turn::Holder alone(start_turn_, deadline);
  if (!alone) throw late();
  if (is_started_) return;
  if (is_lost_) throw BackendError("backend mpi: MPI_Init missed its deadline, and cannot be called again");
  if (library_.is_finalized()) throw ValueError("backend mpi: the program has called MPI_Finalize already");
  if (library_.is_initialized()) {
    accept(library_.thread_level(), false);
  } else {
    // MPI_Init waits for the other processes of the job, and knows no deadline.
    const auto level = std::make_shared<std::atomic<ThreadLevel>>(ThreadLevel::single);
    if (!run_bounded([this, level] { *level = library_.initialize(); }, deadline)) {
      is_lost_ = true;
      throw late();
    }
    accept(*level, true);
  }
  pid_ = ::getpid();
  largest_tag_ = library_.largest_tag();
  is_started_ = true;
  log(LogLevel::info, fmt::format("backend mpi: {}", library_.version()));
}

void Runtime::accept(ThreadLevel level, bool is_ours) {
  if (level < ThreadLevel::serialized) {
    throw ValueError(is_ours
                         ? fmt::format("backend mpi: {} was not built for threads", library_.version())
                         : "backend mpi: the program initialised MPI for one thread; call MPI_Init_thread and ask for "
                           "MPI_THREAD_MULTIPLE (or MPI_THREAD_SERIALIZED), or leave MPI_Init to Cohort");
  }
  level_ = level;
  is_ours_ = is_ours;
}

void Runtime::finish() {
  if (!is_started_ || !is_ours_ || has_left_behind() || pid_ != ::getpid()) return;
  try {
    if (!library_.is_finalized()) library_.finalize();
  } catch (const std::exception& e) {
    log(LogLevel::warn, fmt::format("backend mpi: {}", e.what()));
  }
}

Runtime::Held::Held(Turn& turns, Deadline deadline) {
  if (holder_.emplace(turns, deadline)) return;
  throw OperationTimeoutError(
      "MPI was initialised for one call at a time (MPI_THREAD_SERIALIZED), and another one did not end");
}

bool Runtime::run_bounded(std::function<void()> blocking, Deadline deadline) {
  LateThreads::instance().join_ended();
  const auto run = std::make_shared<BoundedRun>();
  run->blocking = std::move(blocking);
  auto thread = start_thread([run] { run->run(); });
  {
    std::unique_lock lock(run->mutex);
    const auto is_done = [&] { return run->is_done; };
    if (deadline.is_never()) {
      run->changed.wait(lock, is_done);
    } else if (!run->changed.wait_until(lock, deadline.when(), is_done)) {
      lock.unlock();
      LateThreads::instance().keep(std::move(thread), run);
      return false;
    }
  }
  thread.join();
  if (run->error) std::rethrow_exception(run->error);
  return true;
}

std::size_t join_late_threads() {
  return LateThreads::instance().join_ended();
}

void Runtime::leave_behind(std::shared_ptr<const void> what) {
  has_left_behind_ = true;
  const std::lock_guard lock(mutex_);
  left_behind_.push_back(std::move(what));
}

Op Runtime::own_op(std::size_t index, Combine combine) {
  const std::lock_guard lock(mutex_);
  for (const auto& [known, op] : own_ops_) {
    if (known == index) return op;
  }
  own_ops_.emplace_back(index, library_.create_op(combine));
  return own_ops_.back().second;
}

}  // namespace cohort::mpi
