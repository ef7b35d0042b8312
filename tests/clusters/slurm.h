// SPDX-License-Identifier: BSD-3-Clause
//
// A SLURM installation of one node: its own munged, slurmctld and slurmd, which write only to a temporary folder; no
// service of the system is touched. They are children of this process, run in the foreground, and end with it in any
// case.
//
//   Slurm slurm;
//   const auto result = slurm.run({"-n", "4"}, {"./program"});
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "program.h"
#include "support/temporary.h"

namespace cohort::test {

class Slurm {
 public:
  /// Returns when the node is idle.
  Slurm();
  ~Slurm();
  Slurm(const Slurm&) = delete;
  Slurm& operator=(const Slurm&) = delete;

  /// What this machine lacks, by name; empty if nothing.
  static std::string what_is_missing();

  /// Runs srun with these flags.
  Finished run(const Command& flags, const Command& program, Variables variables = {},
               std::chrono::seconds at_most = std::chrono::seconds(300)) const;

 private:
  void write_configuration() const;
  void start();
  void wait_until_idle() const;
  std::string logs() const;

  TemporaryFolder folder_;
  std::vector<Program> daemons_;  ///< in the order in which they start; they end in reverse order
};

}  // namespace cohort::test
