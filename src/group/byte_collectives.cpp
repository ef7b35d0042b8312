// SPDX-License-Identifier: BSD-3-Clause
//
// Functions that are built from other operations: collectives of byte strings, all_ok and monitored_barrier.
#include <cohort/error.h>
#include <cohort/process_group.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "core/rank_index.h"
#include "group/issue_notifier.h"
#include "group/process_group_state.h"

namespace cohort {

namespace {

Bytes bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span(text));
}
ConstBytes bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}
template <class T>
Bytes bytes_of_value(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

void check_root(std::string_view function, int root, int size) {
  if (root >= 0 && root < size) return;
  throw ValueError(fmt::format("{}: root {} is not a rank of this group: 0 to {}", function, root, size - 1));
}

std::vector<std::string> gather_strings(Backend& backend, std::string_view mine, Call& call) {
  const auto n = index_of(backend.size());
  std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(n);
  std::vector<Bytes> places;
  places.reserve(n);
  for (auto& each : lengths) places.push_back(bytes_of_value(each));
  backend.perform(Operation::all_gather(bytes_of_value(length), places), call);

  std::vector<std::string> all(n);
  places.clear();
  for (std::size_t rank = 0; rank < n; ++rank) {
    all[rank].resize(lengths[rank]);
    places.push_back(bytes_of(all[rank]));
  }
  backend.perform(Operation::all_gather(bytes_of(mine), places), call);
  return all;
}

}  // namespace

std::vector<std::string> ProcessGroup::all_gather_bytes(std::string_view mine, const AllGatherOptions& options) {
  if (options.async_op) throw ValueError("all_gather_bytes: async_op is not supported, only blocking calls");
  std::vector<std::string> all;
  state_->run_in_turn(OpType::all_gather, options.timeout,
                      [&](Backend& backend, Call& call) { all = gather_strings(backend, mine, call); });
  IssueNotifier::notify_for_host(*this, OpType::all_gather, "all_gather_bytes");
  return all;
}

std::vector<std::string> ProcessGroup::gather_bytes(std::string_view mine, const GatherOptions& options) {
  if (options.async_op) throw ValueError("gather_bytes: async_op is not supported, only blocking calls");
  check_root("gather_bytes", options.root, size_);
  const bool is_root = rank_ == options.root;
  std::vector<std::string> all(is_root ? index_of(size_) : 0);
  state_->run_in_turn(OpType::gather, options.timeout, [&](Backend& backend, Call& call) {
    std::uint64_t length = mine.size();
    std::vector<std::uint64_t> lengths(all.size());
    std::vector<Bytes> places;
    places.reserve(index_of(size_));
    for (auto& each : lengths) places.push_back(bytes_of_value(each));
    backend.perform(Operation::gather(bytes_of_value(length), places, options.root), call);

    // An all_to_all in which only the root receives, because only the root knows the lengths.
    std::vector<ConstBytes> sent(index_of(size_));
    sent[index_of(options.root)] = bytes_of(mine);
    places.clear();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      all[rank].resize(lengths[rank]);
      places.push_back(bytes_of(all[rank]));
    }
    places.resize(index_of(size_));
    backend.perform(Operation::all_to_all(sent, places), call);
  });
  IssueNotifier::notify_for_host(*this, OpType::gather, "gather_bytes");
  return all;
}

std::string ProcessGroup::broadcast_bytes(std::string_view mine, const BroadcastOptions& options) {
  if (options.async_op) throw ValueError("broadcast_bytes: async_op is not supported, only blocking calls");
  check_root("broadcast_bytes", options.root, size_);
  std::string bytes;
  state_->run_in_turn(OpType::broadcast, options.timeout, [&](Backend& backend, Call& call) {
    std::uint64_t length = mine.size();
    backend.perform(Operation::broadcast(bytes_of_value(length), options.root), call);
    if (rank_ == options.root) {
      bytes = mine;
    } else {
      bytes.resize(length);
    }
    backend.perform(Operation::broadcast(bytes_of(bytes), options.root), call);
  });
  IssueNotifier::notify_for_host(*this, OpType::broadcast, "broadcast_bytes");
  return bytes;
}

void ProcessGroup::all_ok(const std::function<void()>& fn, Timeout timeout) {
  // An empty string means success; a failure always has a text.
  std::string failure;
  std::exception_ptr own;
  try {
    fn();
  } catch (const std::exception& e) {
    own = std::current_exception();
    failure = *e.what() == '\0' ? typeid(e).name() : e.what();
  } catch (...) {
    own = std::current_exception();
    failure = "unknown error";
  }
  const auto all = all_gather_bytes(failure, {.timeout = timeout});
  for (int rank = 0; rank < size_; ++rank) {
    const auto& message = all[index_of(rank)];
    if (message.empty()) continue;
    throw DistributedError(fmt::format("rank {} failed: {}", rank, message),
                           {.group = id(), .op = "all_ok", .rank = rank, .cause = own});
  }
}

namespace {

// Users cannot give negative tags.
constexpr int arrival_tag = -2;
constexpr int answer_tag = -3;

}  // namespace

void ProcessGroup::monitored_barrier(const MonitoredBarrierOptions& options) {
  state_->check_open(OpType::barrier);
  const auto backend = this->backend(Device());
  const auto timeout = options.timeout.duration_or(this->timeout());
  const auto round = ++state_->monitored_barriers;
  const auto context = [&](int rank) -> ErrorContext {
    return {.group = id(), .op = "monitored_barrier", .sequence = round, .rank = rank};
  };
  // One entry per rank: nonzero if the rank is missing.
  std::string missing(index_of(size_), '\0');
  const auto throw_if_missing = [&] {
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      if (missing[index_of(rank)] != 0) ranks.push_back(rank);
    }
    if (ranks.empty()) return;
    throw OperationTimeoutError(fmt::format("monitored_barrier: rank{} {} did not join within {} ms",
                                            ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "), timeout.count()),
                                context(ranks.front()));
  };

  if (rank_ != 0) {
    // Rank 0 decides, and may give every rank the whole timeout.
    Call call(OpType::barrier, round, Deadline::after(timeout * size_ + std::chrono::seconds(1)), timeout);
    try {
      auto number = round;
      backend->perform(Operation::send(bytes_of_value(number), 0, arrival_tag), call);
      backend->perform(Operation::recv(bytes_of(missing), 0, answer_tag), call);
    } catch (const OperationTimeoutError&) {
      throw OperationTimeoutError("monitored_barrier: no answer from rank 0; see the error on that rank", context(0));
    }
    throw_if_missing();
    return IssueNotifier::notify_for_host(*this, OpType::barrier, "monitored_barrier");
  }

  const auto deadline = Deadline::after(timeout);
  for (int rank = 1; rank < size_; ++rank) {
    Call call(OpType::barrier, round, options.wait_all_ranks ? Deadline::after(timeout) : deadline, timeout);
    try {
      // A rank that was late for an earlier barrier may have left an older number.
      std::uint64_t number = 0;
      while (number < round && !call.deadline().expired()) {
        backend->perform(Operation::recv(bytes_of_value(number), rank, arrival_tag), call);
      }
      if (number < round) missing[index_of(rank)] = 1;
    } catch (const OperationTimeoutError&) {
      missing[index_of(rank)] = 1;
      if (!options.wait_all_ranks) break;
    }
  }
  for (int rank = 1; rank < size_; ++rank) {
    if (missing[index_of(rank)] != 0) continue;
    Call call(OpType::barrier, round, Deadline::after(std::chrono::seconds(1)));
    try {
      backend->perform(Operation::send(bytes_of(missing), rank, answer_tag), call);
    } catch (const OperationTimeoutError&) {
      continue;  // the rank has not arrived, and rank 0 had stopped waiting at an earlier one
    }
  }
  throw_if_missing();
  IssueNotifier::notify_for_host(*this, OpType::barrier, "monitored_barrier");
}

}  // namespace cohort
