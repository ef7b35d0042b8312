// SPDX-License-Identifier: BSD-3-Clause
//
// The memory that a replay makes: how long each storage lives, how much is alive at once, and where each would lie in
// one arena. A replay lets go of a value after its last use, and of a storage with the last value that shows it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "torch/capture/program.h"

namespace cohort::recording {

/// A storage that the step makes.
struct Lifetime {
  std::size_t storage;
  std::size_t bytes;
  std::size_t first;  ///< the instruction that makes it
  std::size_t last;   ///< the last one that uses it; the number of instructions if it is left to the caller
};

std::vector<Lifetime> lifetimes_of(const Program& program);
/// If the instructions were in this order.
std::vector<Lifetime> lifetimes_of(const Program& program, std::span<const std::size_t> order);

/// At each of so many instructions, what it uses and makes included.
std::vector<std::size_t> live_bytes(std::span<const Lifetime> lifetimes, std::size_t instructions);

struct MemoryPlan {
  std::size_t made = 0;                ///< bytes of all storages together
  std::size_t peak = 0;                ///< bytes alive at once, which no arena can go below
  std::size_t arena = 0;               ///< bytes of an arena in which each has the place of `offsets`
  std::vector<std::size_t> offsets{};  ///< of the lifetimes, in their order
};

/// Two storages share bytes of the arena only if they do not live at the same time. Places are found by size: the
/// largest storage first, each in the smallest gap that fits between those that live at the same time (the "greedy by
/// size" offsets of Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020,
/// arXiv:2001.03288).
MemoryPlan plan_memory(std::span<const Lifetime> lifetimes, std::size_t instructions);

/// "temporaries: a peak of 3.1 MiB of 14.0 MiB made, 3.2 MiB in one arena"
std::string memory_text(const Program& program);

}  // namespace cohort::recording
