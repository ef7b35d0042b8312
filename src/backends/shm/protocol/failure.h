// SPDX-License-Identifier: BSD-3-Clause
//
// The reason why a group is broken: written once into its board by the first rank that detects it, read by all ranks,
// and thrown by every operation from then on.
#pragma once

#include <optional>

#include "backends/common/failure.h"
#include "backends/shm/protocol/board.h"

namespace cohort::shm {

/// Returns false if a failure has been recorded already.
bool record_failure(const Board& board, const Failure& failure);
std::optional<Failure> recorded_failure(const Board& board);
inline bool has_failed(const Board& board) {
  return board.header().failure.stage.load(std::memory_order_acquire) != 0;
}
}  // namespace cohort::shm
