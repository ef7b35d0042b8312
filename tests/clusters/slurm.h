// SPDX-License-Identifier: BSD-3-Clause
//
// A SLURM of one node: its own munged, slurmctld and slurmd, everything they write in a temporary folder, no service of
// the system touched.
//
//   Slurm slurm;
//   const auto result = slurm.run({"-n", "4"}, {"./program"});
#pragma once

#include <chrono>
#include <string>

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
  void start() const;
  void wait_until_idle() const;
  /// By their pid files.
  void stop() const;
  std::string logs() const;

  TemporaryFolder folder_;
};

}  // namespace cohort::test
