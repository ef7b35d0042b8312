// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <signal.h>
#include <time.h>

#include <cerrno>

namespace cohort::gloo {

/// Gloo writes to its sockets as if they were files: where the other side is gone the kernel sends SIGPIPE, which ends
/// a process that does not expect it. While one of these lives the calling thread gets none, and threads that it starts
/// never do; the write fails with EPIPE all the same. Three system calls, well below a microsecond.
class QuietPipes {
 public:
  QuietPipes() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~QuietPipes() {
    if (::sigismember(&before_, SIGPIPE) == 1) return;
    // One that came is taken back: none was waiting before, since none was blocked.
    constexpr timespec at_once{};
    while (::sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  QuietPipes(const QuietPipes&) = delete;
  QuietPipes& operator=(const QuietPipes&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace cohort::gloo
