// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "backends/shm/bootstrap/survivors.h"
#include "core/abort_text.h"
#include "core/rank_index.h"
#include "group/own_part.h"

namespace cohort::shm {

LocalBackend::LocalBackend(EngineParts parts, BootstrapFunction bootstrap)
    : Backend(parts.name, parts.rank, parts.board.ranks()),
      engine_(std::move(parts)),
      messenger_(engine_),
      bootstrap_(bootstrap) {
  will_say_when_it_waits();
}

Capabilities LocalBackend::capabilities() const {
  return {.operations = Capabilities::bits(
              {OpType::broadcast, OpType::all_reduce, OpType::all_reduce_coalesced, OpType::reduce, OpType::all_gather,
               OpType::all_gather_single, OpType::all_gather_coalesced, OpType::gather, OpType::scatter,
               OpType::reduce_scatter, OpType::all_to_all_single, OpType::all_to_all, OpType::send, OpType::recv,
               OpType::recv_any_source, OpType::barrier, OpType::reduce_scatter_single, OpType::coalesced}),
          .group_memory = engine_.peer_memory().is_available(),
          .splitting = true,
          .shrinking = true,
          .regrouping = true,
          .aborting = true,
          .premul_sum = true,
          .deterministic_order = true};
}

int LocalBackend::perform(const Operation& op, Call& call) {
  if (op.type == OpType::send) {
    messenger_.send(op, call);
    return -1;
  }
  if (is_p2p(op.type)) return messenger_.recv(op, call);
  try {
    return Backend::perform(op, call);
  } catch (...) {
    // A late peer may still write to the memory of a collective that failed, so that memory is never handed out again.
    const auto abandon = [&](ConstBytes piece) {
      if (!piece.empty()) engine_.peer_memory().abandon(piece.data());
    };
    std::ranges::for_each(op.ins, abandon);
    std::ranges::for_each(op.outs, abandon);
    throw;
  }
}

std::unique_ptr<Transfer> LocalBackend::start_send(const Operation& op, Call& call) {
  return messenger_.start_send(op, call);
}
std::unique_ptr<Transfer> LocalBackend::start_recv(const Operation& op, Call& call) {
  return messenger_.start_recv(op, call);
}
void LocalBackend::rest(Deadline until) {
  messenger_.rest(until);
}

GroupMemory LocalBackend::allocate(std::size_t bytes) {
  return engine_.peer_memory().allocate(bytes);
}

BackendPtr LocalBackend::split(const BackendSplit& split, Deadline deadline) {
  return partition(std::span(&split, 1), deadline);
}

BackendPtr LocalBackend::partition(std::span<const BackendSplit> parts, Deadline deadline) {
  const auto own = find_own_part(parts, rank());
  // The tickets go to all ranks of the parent: ranks outside a new group wait for them too, so that all stay at the
  // same operation of the parent.
  using Ticket = std::array<char, ticket_bytes>;
  const auto exchange = [&](std::string_view ticket) {
    Ticket mine{};
    std::copy_n(ticket.begin(), std::min(ticket.size(), mine.size() - 1), mine.begin());
    const auto bytes = std::as_writable_bytes(std::span(mine));
    if (parts.size() == 1) {
      Call call(OpType::broadcast, 0, deadline);
      broadcast(Operation::broadcast(bytes, parts.front().ranks.front()), call);
      return std::string(mine.data());
    }
    std::vector<Ticket> all(index_of(size()));
    std::vector<Bytes> places;
    places.reserve(all.size());
    for (auto& each : all) places.emplace_back(std::as_writable_bytes(std::span(each)));
    Call call(OpType::all_gather, 0, deadline);
    all_gather(Operation::all_gather(bytes, places), call);
    return own ? std::string(all[index_of(parts[own->index].ranks.front())].data()) : std::string();
  };
  if (!own) {
    exchange({});
    return nullptr;
  }
  const auto& part = parts[own->index];
  try {
    return std::make_shared<LocalBackend>(bootstrap_({.name = name(),
                                                      .group = part.id,
                                                      .rank = own->rank,
                                                      .size = static_cast<int>(part.ranks.size()),
                                                      .deadline = shortly_before(deadline),
                                                      .exchange = exchange,
                                                      .failure_check = [&] { return trouble_among(part.ranks); }}),
                                          bootstrap_);
  } catch (const BackendError& e) {
    if (e.context().group == engine_.group()) throw;  // from the exchange of tickets
    explain_missing(part, e, deadline);
    throw;
  }
}

void LocalBackend::explain_missing(const BackendSplit& part, const BackendError& error, Deadline deadline) {
  Call call(OpType::coalesced, 0, deadline);
  std::optional<Failure> reason;
  if (error.kind() == ErrorKind::peer_lost) {
    // A connection is closed a moment before the reason is known: its rank's death, or why the root gave up before this
    // rank came.
    for (;;) {
      reason = trouble_among(part.ranks);
      if (reason || deadline.expired()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  engine_.check(call);  // the failure may be this group's, found by trouble_among()
  if (reason) throw_failure(*reason, engine_.context(call));
  if (error.kind() == ErrorKind::timeout) engine_.fail(failure_of_part(error, part, rank()), call);
}

std::optional<Failure> LocalBackend::trouble_among(const std::vector<int>& ranks) {
  if (auto failure = recorded_failure(engine_.board())) return failure;
  for (const int each : engine_.dead_ranks()) {
    if (std::find(ranks.begin(), ranks.end(), each) != ranks.end())
      return engine_.find_failure(each, Engine::Wait::message);
  }
  return std::nullopt;
}

BackendShrunk LocalBackend::shrink(std::span<const int> excluded, Deadline deadline) {
  auto group = Survivors(engine_, excluded, deadline).form_group(bootstrap_, name());
  if (!group.parts) return {};
  return {.ranks = std::move(group.ranks),
          .backend = std::make_shared<LocalBackend>(std::move(*group.parts), bootstrap_)};
}

void LocalBackend::abort(std::string_view reason) {
  record_failure(engine_.board(),
                 {.kind = ErrorKind::aborted, .rank = rank(), .reporter = rank(), .text = abort_text(rank(), reason)});
}

void LocalBackend::end_with(const Failure& failure_of_whole) {
  record_failure(engine_.board(), {.kind = ErrorKind::aborted,
                                   .rank = rank(),
                                   .reporter = rank(),
                                   .text = failure_of_whole.text,
                                   .cause = std::make_shared<Failure>(failure_of_whole)});
}

std::string LocalBackend::status() const {
  return engine_.describe_progress(-1);
}

}  // namespace cohort::shm
