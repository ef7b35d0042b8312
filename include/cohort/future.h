// SPDX-License-Identifier: BSD-3-Clause
//
// A Future is a value that becomes available later, or the error that prevented it.
//
//   auto work = pg->all_reduce(x, {.async_op = true});
//   cohort::Future<double> norm = work.then([&](const auto& buffers) { return norm_of(buffers); });
//   norm.then([](double n) { std::cout << n; });
//   double n = norm.value(5s);                   // waits; throws the error of the operation or of a continuation
//
// If the value is already available, a continuation runs at once, on the thread that calls then(). Otherwise it runs on
// a thread that the group uses for continuations only, one after another; it never runs on the progress thread. If the
// future failed, its continuation is not called and the error is passed down the chain.
#pragma once

#include <cohort/deadline.h>
#include <cohort/error.h>
#include <cohort/export.h>
#include <cohort/timeout.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace cohort {

/// Runs tasks one after another, on a thread of its choice.
class COHORT_API Executor {
 public:
  virtual ~Executor() = default;
  virtual void run(std::function<void()> task) = 0;
};

namespace detail {

struct Unit {};
template <class T>
using Stored = std::conditional_t<std::is_void_v<T>, Unit, T>;

COHORT_API void throw_wait_expired(std::chrono::milliseconds timeout);

/// The state shared by a Promise and its Futures.
template <class T>
class FutureState {
 public:
  explicit FutureState(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

  void set_value(Stored<T> value) {
    complete([&] { value_.emplace(std::move(value)); });
  }
  void set_exception(std::exception_ptr error) {
    complete([&] { error_ = std::move(error); });
  }
  bool is_done() const {
    const std::lock_guard lock(mutex_);
    return is_done_;
  }
  bool wait(Deadline deadline) const {
    std::unique_lock lock(mutex_);
    const auto done = [this] { return is_done_; };
    ++waiters_;
    if (deadline.is_never()) {
      changed_.wait(lock, done);
    } else {
      changed_.wait_until(lock, deadline.when(), done);
    }
    --waiters_;
    return is_done_;
  }
  /// Whether a thread waits at this moment.
  bool is_awaited() const {
    const std::lock_guard lock(mutex_);
    return waiters_ > 0;
  }
  /// Only valid after completion; neither the value nor the error changes then.
  const Stored<T>& value() const {
    if (error_) std::rethrow_exception(error_);
    return *value_;
  }
  const std::exception_ptr& error() const { return error_; }

  /// Runs the task at once if the future is done, otherwise when it is, on `executor` or, without one, on the future's.
  void when_done(std::function<void()> task, const std::shared_ptr<Executor>& executor = nullptr) {
    {
      const std::lock_guard lock(mutex_);
      if (!is_done_) {
        tasks_.push_back({std::move(task), executor ? executor : executor_});
        return;
      }
    }
    task();
  }
  const std::shared_ptr<Executor>& executor() const { return executor_; }

 private:
  struct Continuation {
    std::function<void()> task;
    std::shared_ptr<Executor> executor;  ///< null: the thread that completes the future
  };
  template <class Set>
  void complete(Set&& set) {
    std::vector<Continuation> tasks;
    {
      const std::lock_guard lock(mutex_);
      if (is_done_) throw Error("this future is already completed");
      set();
      is_done_ = true;
      tasks.swap(tasks_);
      changed_.notify_all();
    }
    for (auto& [task, executor] : tasks) executor ? executor->run(std::move(task)) : task();
  }

  const std::shared_ptr<Executor> executor_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool is_done_ = false;
  mutable int waiters_ = 0;
  std::optional<Stored<T>> value_;
  std::exception_ptr error_;
  std::vector<Continuation> tasks_;
};

template <class F, class T>
struct ContinuationOf {
  using Result = std::invoke_result_t<F, const T&>;
};
template <class F>
struct ContinuationOf<F, void> {
  using Result = std::invoke_result_t<F>;
};

}  // namespace detail

template <class T>
class Promise;

template <class T>
class Future {
 public:
  bool is_done() const { return state_->is_done(); }
  /// Throws OperationTimeoutError if `timeout` passes first. This cancels nothing, and wait() may be called again. By
  /// default it waits without limit.
  void wait(Timeout timeout = {}) const {
    if (!state_->wait(timeout.deadline_or(no_timeout))) detail::throw_wait_expired(timeout.duration_or(no_timeout));
  }
  /// Waits, then returns the value or throws the error.
  decltype(auto) value(Timeout timeout = {}) const {
    wait(timeout);
    if constexpr (std::is_void_v<T>) {
      state_->value();
    } else {
      return static_cast<const T&>(state_->value());
    }
  }
  /// Null if the future is not done or has a value.
  std::exception_ptr exception() const { return is_done() ? state_->error() : nullptr; }

  /// Calls `f` with the value (without an argument for Future<void>) once it is available. Returns the future of what
  /// `f` returns.
  template <class F>
  auto then(F f) const {
    using Result = typename detail::ContinuationOf<F, T>::Result;
    auto next = std::make_shared<detail::FutureState<Result>>(state_->executor());
    state_->when_done([state = state_, next, f = std::move(f)]() mutable {
      if (state->error()) return next->set_exception(state->error());
      try {
        const auto call = [&]() -> Result {
          if constexpr (std::is_void_v<T>) {
            return f();
          } else {
            return f(state->value());
          }
        };
        if constexpr (std::is_void_v<Result>) {
          call();
          next->set_value({});
        } else {
          next->set_value(call());
        }
      } catch (...) {
        next->set_exception(std::current_exception());
      }
    });
    return Future<Result>(std::move(next));
  }
  /// Calls `f` with this future once it is done, with a value or with an error. With an executor, `f` runs there
  /// instead of on the group's thread for continuations, unless the future is already done.
  template <class F>
  void on_done(F f, const std::shared_ptr<Executor>& executor = nullptr) const {
    state_->when_done([self = *this, f = std::move(f)]() mutable { f(self); }, executor);
  }

 private:
  friend class Promise<T>;
  template <class>
  friend class Future;
  friend class Work;
  explicit Future(std::shared_ptr<detail::FutureState<T>> state) : state_(std::move(state)) {}

  std::shared_ptr<detail::FutureState<T>> state_;
};

/// Completes a Future.
template <class T>
class Promise {
 public:
  explicit Promise(std::shared_ptr<Executor> executor = nullptr)
      : state_(std::make_shared<detail::FutureState<T>>(std::move(executor))) {}

  Future<T> future() const { return Future<T>(state_); }
  /// Completing a promise twice throws Error.
  void set_value(detail::Stored<T> value = {}) { state_->set_value(std::move(value)); }
  void set_exception(std::exception_ptr error) { state_->set_exception(std::move(error)); }

 private:
  std::shared_ptr<detail::FutureState<T>> state_;
};

/// A future that is done when all are. Its value is all values in order; its error is the first one in order.
template <class T>
  requires(!std::is_void_v<T>)
Future<std::vector<T>> collect_all(const std::vector<Future<T>>& futures) {
  struct Gathering {
    std::vector<Future<T>> futures;
    std::mutex mutex;
    std::size_t missing;
    Promise<std::vector<T>> promise;
  };
  const auto all = std::make_shared<Gathering>();
  all->futures = futures;
  all->missing = futures.size() + 1;
  const auto arrived = [all] {
    {
      const std::lock_guard lock(all->mutex);
      if (--all->missing > 0) return;
    }
    std::vector<T> values;
    for (const auto& future : all->futures) {
      if (const auto error = future.exception()) return all->promise.set_exception(error);
      values.push_back(future.value());
    }
    all->promise.set_value(std::move(values));
  };
  for (const auto& future : futures) future.on_done([arrived](const auto&) { arrived(); });
  arrived();
  return all->promise.future();
}

}  // namespace cohort
