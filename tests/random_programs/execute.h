// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/process_group.h>

#include <optional>
#include <string>

#include "random_programs/program.h"

namespace cohort::random_programs {

struct Failure {
  std::string kind{};  ///< "wrong data" or "error", and where nothing was reported "hang" or "crash"
  int step = 0;        ///< 0: outside of the steps
  std::string text{};
};

/// Runs this rank's part of the program. `world` must have the program's size. With `tampered`, results of steps of
/// that kind are changed on the last rank before they are checked, as if the library had a bug there.
std::optional<Failure> execute(const Program& program, const ProcessGroupPtr& world_group,
                               std::optional<Kind> tampered = {});

}  // namespace cohort::random_programs
