// SPDX-License-Identifier: BSD-3-Clause
//
// Every environment variable that Cohort reads, in one place. No other code in the library reads the environment; code
// that needs a variable is given an Env.
//
//   const auto env = cohort::Env::read();                      // the current environment of the process
//   const auto made = cohort::Env::from({{"RANK", "0"}, {"WORLD_SIZE", "2"}});  // a made-up one, for tests
//
// A variable that is set but empty counts as not set. A malformed value is a ValueError that names the variable.
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
  /// Reads one of the variables in known() and ignores the others, even if they are malformed.
  static std::string read_one(std::string_view name);
  static Env from(std::map<std::string, std::string, std::less<>> variables);

  /// COHORT_LOG: trace, debug, info, warn (default), error or off.
  LogLevel log_level = LogLevel::warn;

  /// COHORT_STORE: the address of the job's store if a launcher owns it, as unix:@name or tcp://host:port. `cohort run`
  /// sets it.
  std::string store;

  /// COHORT_STORE_PORT: the TCP port of the store under another launcher on several hosts. By default it is derived
  /// from the job's id and avoids the launcher's own port.
  std::optional<std::uint16_t> store_port;

  /// COHORT_SECRET_FILE: the file with the job's secret, mode 0600, as `cohort secret` makes it.
  std::string secret_file;

  /// COHORT_INSECURE: a true value allows a job on several hosts to run without a secret. Anyone who can reach the port
  /// can then join the job.
  bool insecure = false;

  /// COHORT_RUN_ID: the name of the job. `cohort run` sets it.
  std::string run_id;

  /// COHORT_TLS_CA, COHORT_TLS_CERT, COHORT_TLS_KEY: PEM files; all three turn on mutual TLS 1.3 for TCP stores.
  std::string tls_ca, tls_cert, tls_key;

  /// COHORT_TLS_NAME: the name that the store's certificate must contain; default: the host that the client connects
  /// to.
  std::string tls_name;

  /// COHORT_TRACE_BUFFER_SIZE, or TORCH_FR_BUFFER_SIZE, or TORCH_NCCL_TRACE_BUFFER_SIZE: how many operations the flight
  /// recorder keeps; 0: none.
  std::size_t trace_buffer_size = 2000;

  /// COHORT_TRACE_FILE, or TORCH_FR_DUMP_TEMP_FILE: the file for the flight recorder's dumps; the rank is appended.
  std::string trace_file;

  /// COHORT_TRACE_SIGNAL: a signal that makes the flight recorder dump, by name (USR2) or number; 0: none.
  int trace_signal = 0;

  /// COHORT_TRACE_STACKS: a true value makes the flight recorder keep the call stack of each operation.
  bool trace_stacks = false;

  /// The text of one of the variables in known(); empty if it is not set. Throws AssertionError for a variable that is
  /// not listed there: add it first.
  std::string_view text(std::string_view name) const;
  /// The same as an integer. Throws ValueError if the variable is set to something else.
  std::optional<int> integer(std::string_view name) const;

  /// The same environment with one variable changed.
  Env with(std::string_view name, std::string value) const;

  /// All variables that are read, Cohort's own and the launchers', with their meaning.
  static std::span<const EnvVariable> known();

 private:
  std::map<std::string, std::string, std::less<>> text_;
};

}  // namespace cohort
