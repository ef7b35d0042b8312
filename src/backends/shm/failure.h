// SPDX-License-Identifier: BSD-3-Clause
//
// Why a group is broken: written once into its board by the first rank that knows, read by all, thrown by every
// operation afterwards.
#pragma once

#include <cohort/error.h>

#include <optional>
#include <string>
#include <string_view>

#include "backends/shm/board.h"

namespace cohort::shm {

struct Failure {
  ErrorKind kind = ErrorKind::backend;
  int rank = -1;      ///< at fault
  int reporter = -1;  ///< who noticed
  std::string text{};
};

/// False if there is one already.
bool record_failure(const Board& board, const Failure& failure);
std::optional<Failure> recorded_failure(const Board& board);
inline bool has_failed(const Board& board) {
  return board.header().failure.stage.load(std::memory_order_acquire) != 0;
}
/// As the class that belongs to its kind.
[[noreturn]] void throw_failure(const Failure& failure, ErrorContext context);

}  // namespace cohort::shm
