// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/protocol/failure.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

namespace cohort::shm {

namespace {
enum Stage : std::uint32_t { none, being_written, written };
}

bool record_failure(const Board& board, const Failure& failure) {
  auto& record = board.header().failure;
  std::uint32_t expected = none;
  if (!record.stage.compare_exchange_strong(expected, being_written, std::memory_order_acq_rel)) return false;
  record.kind = static_cast<std::uint32_t>(failure.kind);
  record.rank = failure.rank;
  record.reporter = failure.reporter;
  if (failure.cause != nullptr) {
    record.has_cause = 1;
    record.cause_kind = static_cast<std::uint32_t>(failure.cause->kind);
    record.cause_rank = failure.cause->rank;
    record.cause_is_explained = failure.cause->is_explained ? 1U : 0U;
  }
  const auto length = std::min(failure.text.size(), failure_text - 1);
  std::memcpy(record.text.data(), failure.text.data(), length);
  record.text[length] = '\0';
  record.stage.store(written, std::memory_order_release);
  return true;
}

std::optional<Failure> recorded_failure(const Board& board) {
  auto& record = board.header().failure;
  // Another rank may be writing it, which takes a moment.
  for (int looks = 0; record.stage.load(std::memory_order_acquire) == being_written && looks < 1000; ++looks) {
    ::sched_yield();
  }
  switch (record.stage.load(std::memory_order_acquire)) {
    case none:
      return std::nullopt;
    case written:
      break;
    default:
      // The writer may have died halfway. Its text is lost, but the group is broken all the same.
      return Failure{.kind = ErrorKind::backend, .text = "the group failed on another rank"};
  }
  const std::string text(record.text.data(), ::strnlen(record.text.data(), failure_text - 1));
  Failure failure{
      .kind = static_cast<ErrorKind>(record.kind), .rank = record.rank, .reporter = record.reporter, .text = text};
  if (record.has_cause != 0) {
    failure.cause = std::make_shared<Failure>(Failure{.kind = static_cast<ErrorKind>(record.cause_kind),
                                                      .rank = record.cause_rank,
                                                      .is_explained = record.cause_is_explained != 0,
                                                      .text = text});
  }
  return failure;
}

}  // namespace cohort::shm
