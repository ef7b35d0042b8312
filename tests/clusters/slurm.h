// SPDX-License-Identifier: BSD-3-Clause
//
// SLURM on one node, with a munged, slurmctld and slurmd of its own that write only to a temporary folder; no service
// of the system is touched. They are children of this process, in the foreground, and end with it, however it ends.
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

  /// The names of the programs that this machine lacks; empty if it has all.
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
  std::vector<Program> daemons_;  ///< in the order of their start; they end in the reverse order
};

}  // namespace cohort::test
