// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <signal.h>
#include <time.h>

#include <cerrno>

namespace cohort::gloo {

/// Gloo writes to its sockets as if they were files: if the other side is gone, the kernel sends SIGPIPE, which ends a
/// process that does not expect it. While a QuietPipes exists, the calling thread receives none, and threads that it
/// starts never do; the write still fails with EPIPE. It costs three system calls, well below a microsecond.
class QuietPipes {
 public:
  QuietPipes() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~QuietPipes() {
    if (::sigismember(&before_, SIGPIPE) == 1) return;
    // A SIGPIPE that arrived is removed: none was pending before, since it was not blocked.
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
