// SPDX-License-Identifier: BSD-3-Clause
//
// The command line of `cohort run` as it was typed: torchrun's flag names in both spellings, mpirun's -n and -np, and
// the PET_<FLAG> variables that torchrun takes its defaults from.
#pragma once

#include <cohort/env.h>

#include <optional>
#include <string>
#include <vector>

namespace cohort::tool {

struct RunFlags {
  std::string nnodes{};
  std::string nproc_per_node{};
  std::optional<int> node_rank{};
  std::string master_addr{};
  std::optional<int> master_port{};
  std::string rdzv_endpoint{};
  std::string rdzv_id{};
  std::string rdzv_conf{};
  std::string local_addr{};
  std::string role = "default";
  std::string log_dir{};
  std::string redirects{};
  std::string tee{};
  std::string local_ranks_filter{};
  std::optional<std::string> prefix_format{};
  bool no_prefix = false;
  bool pty = false;
  bool no_pty = false;
  std::string bind = "auto";
  double grace_period = 0.5;
  int max_restarts = 0;
  bool keep_going = false;
  bool standalone = false;
  /// The program and its arguments.
  std::vector<std::string> program{};
};

struct ParsedFlags {
  RunFlags flags{};
  /// Set where there is nothing to run: --help, or an error that has been printed.
  std::optional<int> exit_code{};
};

/// ValueError for an unknown flag, with the one that was probably meant.
ParsedFlags parse_run_flags(const std::vector<std::string>& arguments, const Env& env);

}  // namespace cohort::tool
