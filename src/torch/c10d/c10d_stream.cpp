// SPDX-License-Identifier: BSD-3-Clause
#include "torch/c10d/c10d_stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <cohort/error.h>

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "torch/compat/stream_handle.h"

namespace cohort {

namespace {

class EnqueuedOperation final : public Completion {
 public:
  EnqueuedOperation(std::shared_ptr<const KnownStreams> streams, std::shared_ptr<GroupStatus> status,
                    const c10::Stream& stream, Call& call)
      : streams_(std::move(streams)),
        status_(std::move(status)),
        stream_(stream),
        call_(call.detached()),
        event_(stream.device_type()),
        handler_(call.on_stream()->handler) {
    event_.record(stream);
    try {
      event_.query();
    } catch (const c10::Error&) {
      throw NotSupportedError("an operation of c10d cannot be part of a CUDA graph", status_->context(call));
    }
  }

  bool is_done() override {
    std::shared_ptr<CompletionHandler> handler;
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      if (handler_ == nullptr) return true;
      try {
        if (!event_.query()) {
          error = why_given_up();
          if (!error) return false;
        }
      } catch (const c10::Error& e) {
        error = std::make_exception_ptr(
            BackendError(fmt::format("the device failed: {}", e.what_without_backtrace()), status_->context(call_)));
      }
      error_ = error;
      handler = std::move(handler_);
    }
    handler->ended(error);
    return true;
  }

  void order(void* stream) override {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    if (stream != handle_of(stream_)) event_.block(streams_->named(stream));
  }

  bool wait(Deadline deadline) override {
    for (int round = 0; !is_done(); ++round) {
      if (deadline.expired()) return false;
      if (round < 100) {
        ::sched_yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(round < 1000 ? 20 : 500));
      }
    }
    return true;
  }

 private:
  /// Null while the operation may still end.
  std::exception_ptr why_given_up() {
    try {
      status_->check(call_);
    } catch (const AbortedError&) {
      return std::current_exception();
    }
    if (!call_.deadline().expired()) return nullptr;
    status_->end(fmt::format("the group ended when {} #{} missed its deadline on the device", to_string(call_.op()),
                             call_.sequence()));
    return std::make_exception_ptr(OperationTimeoutError(
        fmt::format("{} did not end within {} ms", to_string(call_.op()), call_.timeout().count()),
        status_->context(call_)));
  }

  const std::shared_ptr<const KnownStreams> streams_;
  const std::shared_ptr<GroupStatus> status_;
  const c10::Stream stream_;
  Call call_;
  std::mutex mutex_;
  c10::Event event_;
  std::shared_ptr<CompletionHandler> handler_;  ///< null once the operation has ended
  std::exception_ptr error_;
};

}  // namespace

void KnownStreams::note_current() {
  const auto current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  auto* const handle = handle_of(current);
  const std::lock_guard lock(mutex_);
  streams_.insert_or_assign(handle, current);
}

c10::Stream KnownStreams::named(void* handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(handle);
  if (found != streams_.end()) return found->second;
  throw NotSupportedError(
      "c10d orders operations on the current stream of the thread that calls them: pass current_stream(tensor) "
      "(cohort/torch/tensor.h)");
}

void EnqueuedOperations::add(const c10::Stream& stream, Call& call) {
  auto operation = std::make_shared<EnqueuedOperation>(streams_, status_, stream, call);
  call.on_stream()->completion = operation;
  // Not earlier: in a capture, asking for the end of any operation is an error.
  sweep();
  const std::lock_guard lock(mutex_);
  operations_.push_back(std::move(operation));
}

void EnqueuedOperations::sweep() {
  std::vector<std::shared_ptr<Completion>> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(operations_);
  }
  // Without the lock: the end of an operation runs users' hooks.
  std::erase_if(all, [](const auto& each) { return each->is_done(); });
  const std::lock_guard lock(mutex_);
  operations_.insert(operations_.end(), all.begin(), all.end());
}

bool EnqueuedOperations::drain(Deadline deadline) {
  std::vector<std::shared_ptr<Completion>> all;
  {
    const std::lock_guard lock(mutex_);
    all = operations_;
  }
  if (!std::ranges::all_of(all, [&](const auto& each) { return each->wait(deadline); })) return false;
  sweep();
  return true;
}

}  // namespace cohort
