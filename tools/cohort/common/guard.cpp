// SPDX-License-Identifier: BSD-3-Clause
#include "common/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <set>
#include <utility>

#include "common/pipe.h"
#include "common/throw_errno.h"

namespace cohort::tool {

namespace {

// A message is one number, small enough to be written atomically: a group to watch, its negative to forget it, 0 to
// end.
void send(int channel, pid_t message) noexcept {
  while (::write(channel, &message, sizeof(message)) < 0 && errno == EINTR) {
  }
}

/// Keeps nothing of the launcher: not its terminal, not its folder, and not its output, for whose end others may wait.
void detach_from_launcher(int channel) {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  ::setsid();
  ::prctl(PR_SET_NAME, "cohort-guard");
  ::dup2(channel, STDIN_FILENO);
  const int null = ::open("/dev/null", O_WRONLY);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(null, STDERR_FILENO);
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  if (::chdir("/") != 0) ::_exit(1);
}

[[noreturn]] void watch(int channel) {
  detach_from_launcher(channel);
  std::set<pid_t> groups;
  pid_t message = 0;
  for (;;) {
    const auto n = ::read(STDIN_FILENO, &message, sizeof(message));
    if (n < 0 && errno == EINTR) continue;
    if (n != static_cast<ssize_t>(sizeof(message))) break;
    if (message == 0) ::_exit(0);
    if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const auto group : groups) ::kill(-group, SIGKILL);
  ::_exit(1);
}

}  // namespace

Guard::Guard() {
  auto pipe = make_pipe();
  channel_ = std::move(pipe.writing);
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("cannot start a process");
  if (pid_ == 0) watch(pipe.reading.get());
}

Guard::~Guard() {
  send(channel_.get(), 0);
  channel_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::announce(int channel, pid_t group) noexcept {
  send(channel, group);
}

void Guard::forget(pid_t group) const noexcept {
  send(channel_.get(), -group);
}

}  // namespace cohort::tool
