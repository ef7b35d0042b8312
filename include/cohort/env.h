// SPDX-License-Identifier: BSD-3-Clause
//
// Every environment variable Cohort reads, in one place. Nothing else in the library looks at the environment; whoever
// needs a variable is handed an Env.
//
//   const auto env = cohort::Env::read();                      // the process's environment, now
//   const auto made = cohort::Env::from({{"RANK", "0"}, {"WORLD_SIZE", "2"}});  // a made-up one, for tests
//
// A variable that is set but empty counts as not set. A malformed value is a ValueError naming the variable.
#pragma once

#include <cohort/export.h>
#include <cohort/log.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cohort {

struct EnvVariable {
  std::string_view name;
  std::string_view meaning;
};

class COHORT_API Env {
 public:
  static Env read();
  /// One of the variables in known() alone: whatever is wrong with others is not asked.
  static std::string read_one(std::string_view name);
  static Env from(std::map<std::string, std::string, std::less<>> variables);

  /// COHORT_LOG: trace, debug, info, warn (default), error or off.
  LogLevel log_level = LogLevel::warn;

  /// COHORT_STORE: where the job's store is, when a launcher owns it (`cohort run` sets it): unix:@name or
  /// tcp://host:port.
  std::string store;

  /// COHORT_STORE_PORT: the TCP port for the store under a foreign launcher on several hosts; default: derived from the
  /// job's id, away from the launcher's own port.
  std::optional<std::uint16_t> store_port;

  /// COHORT_SECRET_FILE: file with the job's secret, mode 0600, made by `cohort secret`.
  std::string secret_file;

  /// COHORT_INSECURE: a true value lets a job on several hosts run without a secret. Anyone who can reach the port can
  /// then take part in the job.
  bool insecure = false;

  /// COHORT_RUN_ID: names the job; `cohort run` sets it.
  std::string run_id;

  /// COHORT_TLS_CA, COHORT_TLS_CERT, COHORT_TLS_KEY: PEM files; all three turn on mutual TLS 1.3 for TCP stores.
  std::string tls_ca, tls_cert, tls_key;

  /// COHORT_TLS_NAME: the name the store's certificate must carry; default: the host connected to.
  std::string tls_name;

  /// COHORT_TRACE_BUFFER_SIZE (else TORCH_FR_BUFFER_SIZE, TORCH_NCCL_TRACE_BUFFER_SIZE): how many operations the flight
  /// recorder keeps; 0: none.
  std::size_t trace_buffer_size = 2000;

  /// COHORT_TRACE_FILE (else TORCH_FR_DUMP_TEMP_FILE): where the flight recorder's dumps go; the rank is added to it.
  std::string trace_file;

  /// COHORT_TRACE_SIGNAL: a signal that makes the flight recorder dump, by name (USR2) or number; 0: none.
  int trace_signal = 0;

  /// COHORT_TRACE_STACKS: a true value has the flight recorder keep who called each operation.
  bool trace_stacks = false;

  /// The text of one of the variables in known(); empty when not set. Asking for one that is not listed is an
  /// AssertionError: list it first.
  std::string_view text(std::string_view name) const;
  /// The same as an integer; a ValueError if it is set and is not one.
  std::optional<int> integer(std::string_view name) const;

  /// The same environment with one variable changed.
  Env with(std::string_view name, std::string value) const;

  /// All variables that are read, ours and the launchers', with their meaning.
  static std::span<const EnvVariable> known();

 private:
  std::map<std::string, std::string, std::less<>> text_;
};

}  // namespace cohort
