// SPDX-License-Identifier: BSD-3-Clause
//
// Runs a program on a backend, each time in processes of its own, so that a crash or a hang is a result like any other.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "random_programs/execute.h"
#include "random_programs/program.h"

namespace cohort::random_programs {

struct Where {
  std::string backend = "shm";
  /// The timeout of an operation. A program gets half a minute more before it counts as hung.
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
  /// For mpi, and for hybrid over mpi: the command that starts ranks, to which "-n SIZE PROGRAM ..." is added.
  std::string launcher{};
  std::optional<Kind> tampered{};
};

struct Report {
  int rank = -1;  ///< -1: of no rank in particular
  Failure failure{};
};

/// The failures of all ranks, the most telling first; empty if every rank succeeded. Programs that are not launched run
/// in children of this process, which must have no other threads.
std::vector<Report> run(const Program& program, const Where& where);

/// For launched ranks: `options` are the command line that makes this program run some programs of one size as one rank
/// (main.cpp). Returns the reports by seed. `says` is set to what the launcher and the ranks printed besides.
struct Launched {
  std::vector<std::pair<std::uint64_t, Report>> reports{};
  int status = 0;
  std::string says{};
};
Launched launch(const std::string& launcher, int size, const std::vector<std::string>& options,
                std::chrono::milliseconds limit);
/// What a launched rank does: runs the programs, one after the other in one group, and prints its reports.
int run_as_launched_rank(const std::vector<Program>& programs, const Where& where);

/// "rank 2 in step 7: wrong data: ..."
std::string to_string(const Report& report);

}  // namespace cohort::random_programs
