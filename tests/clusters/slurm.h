// SPDX-License-Identifier: BSD-3-Clause
//
// A SLURM of one node: its own munged, slurmctld and slurmd, everything they write in a temporary folder, no service of
// the system touched. They are children of this process, in the foreground, and end with it, however it ends.
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

  /// srun with these flags.
  Finished run(const Command& flags, const Command& program, Variables variables = {},
               std::chrono::seconds at_most = std::chrono::seconds(300)) const;

 private:
  void write_configuration() const;
  void start();
  void wait_until_idle() const;
  std::string logs() const;

  TemporaryFolder folder_;
  std::vector<Program> daemons_;  ///< in the order they start; they end the other way round
};

}  // namespace cohort::test
