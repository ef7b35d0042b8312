// SPDX-License-Identifier: BSD-3-Clause
#include "common/exit_status.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace cohort::tool {

std::string signal_name(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

std::string to_string(const ExitStatus& status) {
  if (status.signal == 0) return fmt::format("exited with code {}", status.code);
  return fmt::format("was killed by {}{}", signal_name(status.signal), status.dumped_core ? " (core dumped)" : "");
}

ExitStatus wait_for_end(pid_t child, Reap reap) {
  siginfo_t info{};
  const int options = WEXITED | (reap == Reap::keep ? WNOWAIT : 0);
  while (::waitid(P_PID, static_cast<id_t>(child), &info, options) < 0 && errno == EINTR) {
  }
  if (info.si_code == CLD_EXITED) return {.code = info.si_status};
  return {.signal = info.si_status, .dumped_core = info.si_code == CLD_DUMPED};
}

}  // namespace cohort::tool
