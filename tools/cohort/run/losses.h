// SPDX-License-Identifier: BSD-3-Clause
//
// Under --keep-going: which ranks of this host were lost, which were replaced, and what that makes of the job.
#pragma once

#include <map>
#include <string>

#include "common/exit_status.h"
#include "run/attempt_outcome.h"
#include "run/rank_group.h"

namespace cohort::tool {

class Losses {
 public:
  /// How many processes have had this rank before the next one.
  int next_replacement(int rank) { return ++replacements_of_[rank]; }
  int replacements() const;

  void succeeded() { has_success_ = true; }
  /// The rank failed and is not replaced.
  void lost(const RankEnd& end);
  bool is_empty() const { return exit_code_ == 0; }

  /// What this host reports when the last of its processes has ended.
  AttemptOutcome outcome() const;

 private:
  std::map<int, int> replacements_of_;
  std::map<int, std::string> ends_;  ///< "was killed by SIGKILL"
  int exit_code_ = 0;                ///< of the first rank that was lost
  bool has_success_ = false;
};

}  // namespace cohort::tool
