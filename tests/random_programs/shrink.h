// SPDX-License-Identifier: BSD-3-Clause
//
// Cuts a failing program to a few steps, then to a smaller world and smaller buffers, by trying what still fails
// (delta debugging, after Zeller and Hildebrandt 2002).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "random_programs/program.h"

namespace cohort::random_programs {

/// How to make the program of a seed smaller: what the command line says as --size, --steps and --elements.
struct Cut {
  int size = 0;
  std::vector<int> steps{};
  std::optional<std::size_t> elements{};
};
Program with_cut(const Program& program, const Cut& cut);
/// That leaves nothing out.
Cut whole(const Program& program);

/// `fails` says whether the program still fails in the same way if it is cut so. It is not called after `until`.
Cut shrink(const Program& program, const std::function<bool(const Cut&)>& fails,
           std::chrono::steady_clock::time_point until);

}  // namespace cohort::random_programs
