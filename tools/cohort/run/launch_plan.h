// SPDX-License-Identifier: BSD-3-Clause
//
// What `cohort run` is to do: the checked result of the flags, of torchrun's variables and of those of Kubernetes.
#pragma once

#include <cohort/endpoint.h>
#include <cohort/env.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run/flags.h"

namespace cohort::tool {

/// A set of bits, with torchrun's values.
enum Streams : unsigned { no_stream = 0, standard_output = 1, standard_error = 2, both_streams = 3 };

struct LaunchPlan {
  std::vector<std::string> program{};

  int nodes = 1;
  int node_rank = 0;
  int local_size = 1;  ///< ranks on this host
  std::string role{};

  /// --rdzv-id; may be empty.
  std::string job_name{};
  /// Several hosts: the store's address for everyone, and where host 0 listens.
  Endpoint endpoint{};
  Endpoint listen_on{};
  /// One host: what the ranks get as MASTER_ADDR and MASTER_PORT; no port: a free one.
  std::string master_addr = "127.0.0.1";
  std::optional<std::uint16_t> master_port{};
  std::chrono::milliseconds join_timeout{std::chrono::minutes(10)};

  int max_restarts = 0;  ///< with keep_going: replacements for lost ranks, on this host
  bool keep_going = false;
  std::chrono::milliseconds grace_period{500};
  bool may_bind = true;

  std::string log_dir{};
  std::vector<unsigned> logged{};      ///< per local rank: streams that go to the log
  std::vector<unsigned> on_console{};  ///< per local rank: streams that are shown
  /// Before each line of output; empty: nothing. nullopt: the default where there is more than one rank, else nothing.
  std::optional<std::string> prefix_format{};

  /// Standard output of the ranks is a pseudo-terminal where the system has one to give, otherwise a pipe.
  bool uses_pty = true;

  Env env{};

  bool is_one_host() const { return nodes == 1; }
};

/// ValueError names the flag or variable that is wrong.
LaunchPlan make_plan(const RunFlags& flags, const Env& env);

/// "3" or "0:1,2:3": one value for each local rank. `flag` is for the error.
std::vector<unsigned> parse_streams(const std::string& text, int local_size, const char* flag);

}  // namespace cohort::tool
