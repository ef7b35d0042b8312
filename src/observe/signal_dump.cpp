// SPDX-License-Identifier: BSD-3-Clause
#include "observe/signal_dump.h"

#include <cohort/error.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <type_traits>
#include <utility>

namespace cohort::observe {

namespace {

/// The file descriptor that the handler writes to; -1: none.
std::atomic<int> handler_event{-1};
std::atomic<pid_t> handler_process{-1};
static_assert(std::atomic<int>::is_always_lock_free && std::is_same_v<pid_t, int>);

void handle(int /*signal*/) {
  const auto kept = errno;
  const int event = handler_event.load(std::memory_order_acquire);
  if (event >= 0 && handler_process.load(std::memory_order_relaxed) == ::getpid()) {
    const std::uint64_t one = 1;
    // The write can fail only after 2^64 - 2 pending signals, and then the thread is woken anyway.
    [[maybe_unused]] const auto written = ::write(event, &one, sizeof(one));
  }
  errno = kept;
}

FileDescriptor make_event() {
  FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) throw Error(fmt::format("eventfd: {}", std::generic_category().message(errno)));
  return event;
}

/// Never closed: a handler that is still running on some thread after the earlier handling was restored may write to
/// it, and must not write to an unrelated file. There is one for each process, because a forked child must not wake its
/// parent.
int process_event() {
  static int event = -1;
  if (event < 0 || handler_process.load(std::memory_order_relaxed) != ::getpid()) event = make_event().release();
  return event;
}

}  // namespace

SignalDump::SignalDump(int signal, std::function<void()> action)
    : signal_(signal), action_(std::move(action)), event_(process_event()), end_(make_event()) {
  std::uint64_t left_over = 0;
  [[maybe_unused]] const auto drained = ::read(event_, &left_over, sizeof(left_over));
  handler_process.store(::getpid(), std::memory_order_relaxed);
  handler_event.store(event_, std::memory_order_release);
  struct sigaction ours {};
  ours.sa_handler = handle;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  if (::sigaction(signal, &ours, &earlier_) != 0) {
    handler_event.store(-1, std::memory_order_release);
    throw ValueError(fmt::format("signal {} cannot make the flight recorder dump: {}", signal,
                                 std::generic_category().message(errno)));
  }
  // The new thread must not handle the program's signals.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& e) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    ::sigaction(signal_, &earlier_, nullptr);
    handler_event.store(-1, std::memory_order_release);
    throw Error(fmt::format("the flight recorder's thread: {}", e.what()));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SignalDump::~SignalDump() {
  ::sigaction(signal_, &earlier_, nullptr);
  handler_event.store(-1, std::memory_order_release);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(end_.get(), &one, sizeof(one));
  thread_.join();
}

void SignalDump::run() {
  ::pthread_setname_np(::pthread_self(), "cohort-trace");
  std::array<pollfd, 2> ready{{{end_.get(), POLLIN, 0}, {event_, POLLIN, 0}}};
  for (;;) {
    if (::poll(ready.data(), ready.size(), -1) < 0) continue;
    if (ready[0].revents != 0) return;
    std::uint64_t signals = 0;
    if (::read(event_, &signals, sizeof(signals)) == sizeof(signals)) action_();
  }
}

}  // namespace cohort::observe
