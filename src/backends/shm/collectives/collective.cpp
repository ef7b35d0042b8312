// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/collectives/collective.h"

#include <fmt/format.h>
#include <sched.h>

namespace cohort::shm {

void Collective::report_difference(int rank, std::uint64_t theirs, std::uint32_t beside) {
  const auto text = [&](std::uint64_t word, std::uint32_t layout) {
    auto signature = OpSignature::unpack(word);
    if (call_.whole() == 0) signature.layout = layout;
    return to_string(signature);
  };
  const auto* const why = call_.whole() != 0 ? ", as parts of operations that differ" : "";
  mismatch(rank, describe_mismatch(rank, text(theirs, beside), engine_.rank_, text(word_, beside_word_)) + why);
}

void Collective::mismatch(int rank, const std::string& text) {
  engine_.fail({.kind = ErrorKind::mismatch, .rank = rank, .reporter = engine_.rank_, .text = text}, call_);
}

bool Collective::all_reachable() const {
  for (int rank = 0; rank < engine_.size_; ++rank) {
    if (!is_reachable(rank)) return false;
  }
  return true;
}

std::byte* Collective::find(int rank, std::uint64_t location, std::size_t bytes) {
  auto* const found = engine_.peer_memory_->find(rank, location, bytes);
  if (found == nullptr && bytes != 0) {
    mismatch(rank, fmt::format("rank {} published a location outside its memory of the group ({} bytes)", rank, bytes));
  }
  return found;
}

void Collective::read(int rank, std::uint64_t address, void* to, std::size_t bytes) {
  std::string problem;
  try {
    return engine_.peer_memory_->read(rank, address, to, bytes);
  } catch (const BackendError& e) {
    problem = e.message();
  }
  // The memory of a process that is ending is gone a moment before the process is.
  const auto until = earlier(call_.deadline(), Deadline::after(std::chrono::milliseconds(500)));
  do {
    engine_.check(call_);
    if (const auto failure = engine_.find_failure(rank, Engine::Wait::collective)) engine_.fail(*failure, call_);
    ::sched_yield();
  } while (!until.expired());
  engine_.fail({.kind = ErrorKind::backend, .rank = rank, .reporter = engine_.rank_, .text = problem}, call_);
}

void Collective::meet() {
  const auto target = engine_.chunks_done_ + 1;
  raise(engine_.board_.drained(engine_.rank_), target);
  for (int rank = 0; rank < engine_.size_; ++rank) {
    if (rank == engine_.rank_) continue;
    monitor_.waits_for(rank);
    cohort::shm::await(engine_.board_.drained(rank), target, monitor_);
  }
  engine_.chunks_done_ = target;
}

void Collective::need_stage() {
  if (engine_.has_stage_) return;
  try {
    engine_.board_.reserve_stage(engine_.rank_);
  } catch (const Error& e) {
    engine_.fail({.kind = ErrorKind::backend,
                  .rank = engine_.rank_,
                  .reporter = engine_.rank_,
                  .text = fmt::format("rank {}: {}", engine_.rank_, e.message())},
                 call_);
  }
  engine_.has_stage_ = true;
}

}  // namespace cohort::shm
