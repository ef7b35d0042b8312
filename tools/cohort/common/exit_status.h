// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <string>

namespace cohort::tool {

/// The exit code of `cohort run --keep-going` when ranks were lost and not replaced, and others ended with success.
/// Programs rarely use it: it is EX_TEMPFAIL of sysexits.h.
inline constexpr int ranks_were_lost = 75;

/// How a process ended.
struct ExitStatus {
  int code = 0;    ///< meaningful where there is no signal
  int signal = 0;  ///< the one that killed it; 0: it exited by itself
  bool dumped_core = false;

  bool is_success() const { return code == 0 && signal == 0; }
  /// The code that a shell reports: 128 + signal for a process that was killed.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
};

/// "exited with code 3", "was killed by SIGSEGV (core dumped)"
std::string to_string(const ExitStatus& status);
/// "SIGTERM"
std::string signal_name(int signal);

/// Waits for a child to end. With `keep` it stays a zombie, so that its number cannot be reused yet.
enum class Reap { collect, keep };
ExitStatus wait_for_end(pid_t child, Reap reap);

}  // namespace cohort::tool
