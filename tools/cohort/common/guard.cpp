// SPDX-License-Identifier: BSD-3-Clause
#include "common/guard.h"

#include <cohort/secret.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "common/pipe.h"
#include "common/throw_errno.h"
#include "core/parse.h"

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

/// Whether the process was started with this entry in its environment. False for processes of other users, which cannot
/// be read, and for those that have ended.
bool is_marked(const std::string& pid, const std::string& mark) {
  std::ifstream file("/proc/" + pid + "/environ", std::ios::binary);
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry == mark) return true;
  }
  return false;
}

/// Kills all processes with the mark, and those that they start meanwhile.
void kill_marked(const std::string& mark) {
  constexpr int most_rounds = 100;
  bool has_found = true;
  for (int round = 0; has_found && round < most_rounds; ++round) {
    has_found = false;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
      const auto pid = parse_integer<pid_t>(entry.path().filename().string());
      if (!pid || !is_marked(std::to_string(*pid), mark)) continue;
      ::kill(*pid, SIGKILL);
      has_found = true;
    }
    if (has_found) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // for the kernel to end them
  }
}

[[noreturn]] void watch(int channel, const std::string& mark) {
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
  if (!groups.empty()) kill_marked(mark);
  ::_exit(1);
}

}  // namespace

Guard::Guard() : mark_("COHORT_GUARD=" + Secret::generate().hex().substr(0, 32)) {
  auto pipe = make_pipe();
  channel_ = std::move(pipe.writing);
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("cannot start a process");
  if (pid_ == 0) watch(pipe.reading.get(), mark_);
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
