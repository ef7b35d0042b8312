// SPDX-License-Identifier: BSD-3-Clause
#include "common/process.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/throw_errno.h"

namespace cohort::tool {

namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const auto& text : texts) result.push_back(const_cast<char*>(text.c_str()));  // exec takes char* const*
  result.push_back(nullptr);
  return result;
}

/// What the child needs, made before fork(): afterwards only async-signal-safe calls are allowed, since the launcher
/// has threads.
struct Prepared {
  const ProcessSpec& spec;
  char* const* argv;
  char* const* envp;
  int guard_channel;
  pid_t launcher;
  const char* failure;  ///< text for a failed exec
};

void restore_signals(const SignalState& state) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (std::size_t signal = 1; signal < state.ignored.size(); ++signal) {
    if (!state.ignored[signal]) ::sigaction(static_cast<int>(signal), &action, nullptr);
  }
  ::pthread_sigmask(SIG_SETMASK, &state.blocked, nullptr);
}

[[noreturn]] void become(const Prepared& prepared) {
  const auto& spec = prepared.spec;
  ::setpgid(0, 0);
  Guard::announce(prepared.guard_channel, ::getpid());
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != prepared.launcher) ::_exit(128 + SIGKILL);  // it died before the line above took effect
  if (spec.cpus != nullptr) ::sched_setaffinity(0, sizeof(*spec.cpus), spec.cpus);
  ::dup2(spec.input, STDIN_FILENO);
  ::dup2(spec.output, STDOUT_FILENO);
  ::dup2(spec.error, STDERR_FILENO);
  ::setrlimit(RLIMIT_NOFILE, &spec.open_files);
  restore_signals(spec.signals);
  ::execve(spec.path.c_str(), prepared.argv, prepared.envp);
  const int reason = errno;
  const char* const why = ::strerrordesc_np(reason);
  const std::array parts{prepared.failure, why == nullptr ? "unknown error" : why, "\n"};
  for (const auto* const part : parts) {
    if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  ::_exit(reason == ENOENT ? 127 : 126);
}

}  // namespace

SignalState SignalState::now() {
  SignalState state;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) {
      state.ignored.set(static_cast<std::size_t>(signal));
    }
  }
  ::pthread_sigmask(SIG_SETMASK, nullptr, &state.blocked);
  return state;
}

rlimit raise_open_files() {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit raised{before.rlim_max, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

Process::Process(const ProcessSpec& spec, const Guard& guard) : guard_(guard) {
  const auto argv = pointers(spec.arguments);
  const auto envp = pointers(spec.environment);
  const auto failure = fmt::format("cohort run: cannot execute {}: ", spec.path);
  const Prepared prepared{spec, argv.data(), envp.data(), guard.channel(), ::getpid(), failure.c_str()};

  // No signal handler of the launcher may run in the child.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  if (pid_ == 0) become(prepared);
  const int reason = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = reason;
  if (pid_ < 0) throw_errno("cannot start a process");

  ::setpgid(pid_, pid_);  // whichever of the two comes first
  pidfd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    throw_errno("cannot watch a process (pidfd_open)");
  }
}

Process::~Process() {
  signal_group(SIGKILL);
  guard_.forget(pid_);
  // Without waiting: a process that even SIGKILL does not end is left to the system.
  while (::waitpid(pid_, nullptr, WNOHANG) < 0 && errno == EINTR) {
  }
}

ExitStatus Process::status() const {
  return wait_for_end(pid_, Reap::keep);
}

}  // namespace cohort::tool
