// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/backend.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "core/abort_text.h"
#include "group/own_part.h"

namespace cohort::mpi {

namespace {

/// How a rank waits for MPI, which makes progress only while it is called: by asking again and again.
///
/// If every rank has a processor of its own, it tests without a pause. If ranks outnumber processors it yields each
/// time, since the rank it waits for may need this very processor. Once a wait has become long, it sleeps between two
/// tests, for at most 100 us. When a wait counts as long depends on the size of the operation: data moves in pieces,
/// and each of them would wait for the end of a sleep.
class Waiting {
 public:
  Waiting(bool own_cpus, std::size_t bytes) : own_cpus_(own_cpus), bytes_(bytes) {}

  /// Whether to test again at once; otherwise the caller first checks the time and what else may have changed.
  bool is_spinning() noexcept { return own_cpus_ && round_++ < spins; }

  void pause(Deadline::Clock::time_point now, Deadline deadline) {
    if (sleeps_from_ == Deadline::Clock::time_point{}) sleeps_from_ = now + time_awake();
    if (now < sleeps_from_) {
      if (!own_cpus_) ::sched_yield();
      return;
    }
    std::this_thread::sleep_for(std::min<Deadline::Clock::duration>(sleep_, deadline.remaining()));
    sleep_ = std::min<std::chrono::microseconds>(2 * sleep_, max_sleep);
  }

 private:
  static constexpr std::uint32_t spins = 2000;  // about 200 us, well below the precision of any deadline
  static constexpr std::chrono::microseconds max_sleep{100};

  /// A millisecond, and the time that the bytes take at 100 MB/s.
  std::chrono::microseconds time_awake() const {
    return std::chrono::milliseconds(1) + std::chrono::microseconds(bytes_ / 100);
  }

  const bool own_cpus_;
  const std::size_t bytes_;
  std::uint32_t round_ = 0;
  std::chrono::microseconds sleep_{10};
  Deadline::Clock::time_point sleeps_from_{};
};

}  // namespace

MpiBackend::MpiBackend(MpiParts parts)
    : Backend("mpi", parts.rank, static_cast<int>(parts.world_ranks.size())),
      runtime_(*parts.runtime),
      library_(runtime_.library()),
      communicator_(parts.communicator),
      world_ranks_(std::move(parts.world_ranks)),
      group_(std::move(parts.group)),
      own_cpus_(parts.own_cpus),
      largest_count_(parts.largest_count),
      status_(group_),
      point_to_point_(runtime_, communicator_, status_, parts.rank),
      scratch_(std::make_shared<Scratch>()) {}

MpiBackend::~MpiBackend() {
  if (status_.is_ended() || point_to_point_.has_unwanted()) return;
  try {
    const auto turn = runtime_.turn(Deadline::after(std::chrono::seconds(1)));
    if (!library_.is_finalized()) library_.free_communicator(communicator_);
  } catch (const std::exception&) {
    return;  // one more communicator that is never freed
  }
}

Capabilities MpiBackend::capabilities() const {
  return {.operations = Capabilities::bits(
              {OpType::broadcast, OpType::all_reduce, OpType::all_reduce_coalesced, OpType::reduce, OpType::all_gather,
               OpType::all_gather_single, OpType::all_gather_coalesced, OpType::gather, OpType::scatter,
               OpType::reduce_scatter, OpType::all_to_all_single, OpType::all_to_all, OpType::send, OpType::recv,
               OpType::recv_any_source, OpType::barrier, OpType::reduce_scatter_single, OpType::coalesced}),
          .splitting = true,
          .premul_sum = true};
}

// --- running operations to completion

void MpiBackend::check(Call& call) const {
  status_.check(call);
  if (runtime_.is_serialized()) static_cast<void>(call.deadline());
}

void MpiBackend::fail_to_start(const std::runtime_error& error, const Call& call) {
  status_.end(
      fmt::format("the group ended when {} #{} failed: {}", to_string(call.op()), call.sequence(), error.what()));
  auto context = status_.context(call);
  context.cause = std::current_exception();
  throw BackendError(error.what(), std::move(context));
}

void MpiBackend::wait(Started started, Call& call, std::size_t bytes, int culprit) {
  Waiting waiting(own_cpus_, bytes);
  for (;;) {
    Outcome outcome;
    try {
      const auto turn = runtime_.turn(call);
      outcome = library_.test(started.request);
    } catch (const OperationTimeoutError&) {
      give_up(std::move(started), call, culprit);
    }
    if (outcome.is_done) {
      if (outcome.error == 0) return;
      const auto text = library_.describe(outcome.error);
      status_.end(fmt::format("the group ended when {} #{} failed: {}", to_string(call.op()), call.sequence(), text));
      throw BackendError(text, status_.context(call));
    }
    if (waiting.is_spinning()) continue;
    const auto now = Deadline::Clock::now();
    if (status_.is_ended() || now >= call.deadline().when()) give_up(std::move(started), call, culprit);
    waiting.pause(now, call.deadline());
  }
}

void MpiBackend::give_up(Started started, Call& call, int culprit) {
  runtime_.leave_behind(std::move(started.kept));
  runtime_.leave_behind(scratch_);
  status_.check(call);
  status_.end(fmt::format("the group ended when {} #{} missed its deadline: MPI cannot take it back",
                          to_string(call.op()), call.sequence()));
  auto context = status_.context(call);
  if (culprit >= 0 && culprit != rank()) context.rank = culprit;
  throw OperationTimeoutError(
      fmt::format("{} #{} did not end within {} ms, and MPI cannot take it back: the group is of no more use, and the "
                  "operation's memory must stay",
                  to_string(call.op()), call.sequence(), call.timeout().count()),
      std::move(context));
}

// --- moving data

void MpiBackend::broadcast_pieces(Bytes data, int root, Call& call) {
  for (std::size_t done = 0; done < data.size(); done += largest_count_) {
    const auto bytes = std::min(data.size() - done, largest_count_);
    run(call, bytes, root,
        [&] { return library_.broadcast(data.data() + done, static_cast<int>(bytes), root, communicator_); });
  }
}

void MpiBackend::broadcast(const Operation& op, Call& call) {
  check(call);
  if (size() > 1) broadcast_pieces(op.out(), op.root, call);
}

void MpiBackend::all_gather(const Operation& op, Call& call) {
  const auto in = op.in();
  const auto& outs = op.outs;
  check(call);
  const auto own = index_of(rank());
  const auto total = total_of(outs);
  if (size() == 1) return copy_bytes(outs[0].data(), in.data(), in.size());
  if (total == 0) return barrier(op, call);
  if (total > largest_count_) {
    copy_bytes(outs[own].data(), in.data(), in.size());
    for (int root = 0; root < size(); ++root) broadcast_pieces(outs[index_of(root)], root, call);
    return;
  }
  const auto start = packed_start(outs);
  auto* const to = start ? *start : scratch_->get(Scratch::Use::out, total);
  std::size_t before = 0;
  for (std::size_t i = 0; i < own; ++i) before += outs[i].size();
  // MPI wants MPI_IN_PLACE from all ranks or from none, and only this rank knows where its memory is: always in place.
  copy_bytes(to + before, in.data(), in.size());
  if (all_equal(outs)) {
    run(call, total, -1, [&] { return library_.all_gather(to, static_cast<int>(in.size()), communicator_); });
  } else {
    std::vector<int> bytes;
    bytes.reserve(outs.size());
    for (const auto& each : outs) bytes.push_back(static_cast<int>(each.size()));
    run(call, total, -1, [&] { return library_.all_gather_uneven(to, bytes, communicator_); });
  }
  if (start) return;
  std::size_t at = 0;
  for (const auto& each : outs) {
    copy_bytes(each.data(), to + at, each.size());
    at += each.size();
  }
}

void MpiBackend::exchange(std::span<const Piece> sent, std::span<const Piece> received, int culprit, Call& call) {
  std::size_t bytes = 0;
  for (const auto& each : sent) bytes += each.bytes;
  for (const auto& each : received) bytes += each.bytes;
  run(call, bytes, culprit, [&] { return library_.all_to_all(sent, received, communicator_); });
}

// Gather and scatter are all-to-alls in which most ranks have nothing for each other, and nothing is sent between
// those: MPI's own would need equal sizes on all ranks, or all pieces within 2 GiB.

void MpiBackend::gather(const Operation& op, Call& call) {
  const auto in = op.in();
  const auto& outs = op.outs;
  const int root = op.root;
  check(call);
  if (size() == 1) return copy_bytes(outs[0].data(), in.data(), in.size());
  std::vector<Piece> sent(index_of(size()));
  std::vector<Piece> received(index_of(size()));
  if (rank() != root) sent[index_of(root)] = {in.data(), in.size()};
  for (std::size_t i = 0; i < outs.size(); ++i) received[i] = {outs[i].data(), outs[i].size()};
  if (rank() == root) {
    received[index_of(root)] = {};
    copy_bytes(outs[index_of(root)].data(), in.data(), in.size());
  }
  exchange(sent, received, root, call);
}

void MpiBackend::scatter(const Operation& op, Call& call) {
  const auto& ins = op.ins;
  const auto out = op.out();
  const int root = op.root;
  check(call);
  if (size() == 1) return copy_bytes(out.data(), ins[0].data(), out.size());
  std::vector<Piece> sent(index_of(size()));
  std::vector<Piece> received(index_of(size()));
  if (rank() != root) received[index_of(root)] = {out.data(), out.size()};
  for (std::size_t i = 0; i < ins.size(); ++i) sent[i] = {ins[i].data(), ins[i].size()};
  if (rank() == root) {
    sent[index_of(root)] = {};
    copy_bytes(out.data(), ins[index_of(root)].data(), out.size());
  }
  exchange(sent, received, root, call);
}

void MpiBackend::all_to_all(const Operation& op, Call& call) {
  const auto& ins = op.ins;
  const auto& outs = op.outs;
  check(call);
  if (size() == 1) return copy_bytes(outs[0].data(), ins[0].data(), ins[0].size());
  std::vector<Piece> sent;
  std::vector<Piece> received;
  sent.reserve(ins.size());
  received.reserve(outs.size());
  for (const auto& each : ins) sent.push_back({each.data(), each.size()});
  for (const auto& each : outs) received.push_back({each.data(), each.size()});
  exchange(sent, received, -1, call);
}

void MpiBackend::barrier(const Operation& /*op*/, Call& call) {
  check(call);
  if (size() > 1) run(call, 0, -1, [&] { return library_.barrier(communicator_); });
}

// --- point-to-point

std::unique_ptr<Transfer> MpiBackend::start_send(const Operation& op, Call& call) {
  check(call);
  return point_to_point_.start_send(op.in(), op.peer, op.tag, call);
}

std::unique_ptr<Transfer> MpiBackend::start_recv(const Operation& op, Call& call) {
  check(call);
  return point_to_point_.start_recv(op.out(), op.peer, op.tag, call);
}

void MpiBackend::complete(Transfer& transfer, Call& call, std::size_t bytes, int peer) {
  Waiting waiting(own_cpus_, bytes);
  while (!transfer.advance()) {
    if (waiting.is_spinning()) continue;
    transfer.check();
    const auto now = Deadline::Clock::now();
    if (now >= call.deadline().when()) {
      const bool sends = call.op() == OpType::send;
      const auto whom = peer >= 0 ? fmt::format("rank {}", peer) : std::string("any rank");
      auto context = status_.context(call);
      if (peer >= 0) context.rank = peer;
      throw OperationTimeoutError(
          fmt::format("{} {} {} did not end within {} ms: {} has not {}", to_string(call.op()), sends ? "to" : "from",
                      whom, call.timeout().count(), whom, sends ? "received it" : "sent it"),
          std::move(context));
    }
    waiting.pause(now, call.deadline());
  }
}

void MpiBackend::send(const Operation& op, Call& call) {
  complete(*start_send(op, call), call, op.in().size(), op.peer);
}

int MpiBackend::recv(const Operation& op, Call& call) {
  const auto transfer = start_recv(op, call);
  complete(*transfer, call, op.out().size(), op.peer);
  return transfer->source();
}

void MpiBackend::rest(Deadline until) {
  // Relaxed: a hint that several threads may get wrong, in which case one sleeps a little early or late.
  if (const auto ended = point_to_point_.ended(); seen_ended_.exchange(ended, std::memory_order_relaxed) != ended) {
    rests_.store(0, std::memory_order_relaxed);
  }
  constexpr std::uint32_t yields = 1000;  // about a millisecond
  const auto round = rests_.load(std::memory_order_relaxed);
  if (round < yields) {
    rests_.store(round + 1, std::memory_order_relaxed);
    ::sched_yield();
    return;
  }
  std::this_thread::sleep_for(std::min<Deadline::Clock::duration>(std::chrono::microseconds(100), until.remaining()));
}

// --- groups

BackendPtr MpiBackend::split(const BackendSplit& split, Deadline deadline) {
  return partition(std::span(&split, 1), deadline);
}

BackendPtr MpiBackend::partition(std::span<const BackendSplit> divided, Deadline deadline) {
  // Making a communicator cannot be interrupted once begun, so it is tried only when all ranks have called split.
  Call call(OpType::barrier, 0, deadline);
  barrier(Operation::barrier(), call);
  const auto own = find_own_part(divided, rank());
  if (!own) return nullptr;
  const auto& split = divided[own->index];
  MpiParts parts{.runtime = &runtime_, .rank = own->rank, .group = split.id, .own_cpus = own_cpus_};
  for (const int each : split.ranks) parts.world_ranks.push_back(world_ranks_[index_of(each)]);
  parts.communicator = create_communicator(runtime_, parts.world_ranks, split.id, deadline);
  return std::make_shared<MpiBackend>(std::move(parts));
}

BackendShrunk MpiBackend::shrink(std::span<const int> /*excluded*/, Deadline /*deadline*/) {
  throw NotSupportedError(
      "backend mpi cannot shrink: this MPI gives a program no way to go on without a process that has died. Restart "
      "the "
      "job from its last checkpoint, or use backend gloo, or hybrid with engine gloo, under \"cohort run "
      "--keep-going\"",
      {.group = group_, .op = "shrink"});
}

void MpiBackend::abort(std::string_view reason) {
  status_.end(abort_text(rank(), reason));
}

}  // namespace cohort::mpi
