// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/mpi_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>

#include "backends/mpi/communicators.h"
#include "backends/mpi/halves.h"
#include "backends/mpi/waiting.h"
#include "reduce/copy.h"
#include "reduce/kernels.h"

namespace cohort::mpi {

namespace {

using Kind = ReduceOp::Kind;

std::size_t place_of(int rank) {
  return static_cast<std::size_t>(rank);
}

bool is_aligned(const void* data, std::size_t width) {
  return reinterpret_cast<std::uintptr_t>(data) % width == 0;
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) reduce::copy(to, from, bytes);
}

template <class Spans>
std::size_t total_of(const Spans& spans) {
  std::size_t total = 0;
  for (const auto& each : spans) total += each.size();
  return total;
}

template <class Spans>
bool all_equal(const Spans& spans) {
  return std::all_of(spans.begin(), spans.end(), [&](const auto& each) { return each.size() == spans[0].size(); });
}

/// Where the pieces begin if they lie one after another. Nothing: they do not.
template <class Spans>
auto packed_start(const Spans& spans) -> std::optional<decltype(spans[0].data())> {
  std::size_t offset = 0;
  std::optional<decltype(spans[0].data())> start;
  for (const auto& each : spans) {
    if (each.empty()) continue;
    if (!start) start = each.data() - offset;
    if (each.data() != *start + offset) return std::nullopt;
    offset += each.size();
  }
  return start;
}

/// One source, one output: what is left of avg and premul_sum when MPI has done the sum.
void apply(DType dtype, Kind kind, const void* from, void* to, std::size_t count, double factor, double divisor) {
  if (count == 0) return;
  reduce::find_kernel(dtype, kind)({.data = &from, .factors = &factor, .count = 1}, {.data = &to, .count = 1}, count,
                                   divisor);
}

/// MPI takes a null address for something else.
std::byte* somewhere() {
  static std::array<std::byte, 16> bytes{};
  return bytes.data();
}

}  // namespace

class MpiBackend::Scratch {
 public:
  enum class Use { in, out };

  std::byte* get(Use use, std::size_t bytes) {
    auto& area = areas_[static_cast<std::size_t>(use)];
    if (area.size() < bytes) {
      area.clear();  // nothing to be copied
      area.resize(bytes);
    }
    return area.data();
  }

 private:
  std::array<std::vector<std::byte>, 2> areas_{};
};

MpiBackend::MpiBackend(MpiParts parts)
    : Backend("mpi", parts.rank, static_cast<int>(parts.world_ranks.size())),
      runtime_(*parts.runtime),
      library_(runtime_.library()),
      communicator_(parts.communicator),
      world_ranks_(std::move(parts.world_ranks)),
      group_(std::move(parts.group)),
      own_cpus_(parts.own_cpus),
      largest_count_(parts.largest_count),
      ending_(group_),
      messages_(runtime_, communicator_, ending_, parts.rank),
      scratch_(std::make_shared<Scratch>()) {}

MpiBackend::~MpiBackend() {
  if (ending_.is_ended() || messages_.has_unwanted()) return;
  try {
    const auto turn = runtime_.turn(Deadline::after(std::chrono::seconds(1)));
    if (!library_.is_finalized()) library_.free_communicator(communicator_);
  } catch (const std::exception&) {
    return;  // one communicator more that stays
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

// --- seeing operations through
// ---------------------------------------------------------------------------------------

void MpiBackend::check(Call& call) const {
  ending_.check(call);
  if (runtime_.is_serialized()) static_cast<void>(call.deadline());
}

template <class Start>
void MpiBackend::run(Call& call, std::size_t bytes, int culprit, Start&& start) {
  Started started;
  try {
    const auto turn = runtime_.turn(call);
    if constexpr (std::is_same_v<decltype(start()), Request>) {
      started.request = start();
    } else {
      started = start();
    }
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& e) {
    ending_.end(fmt::format("the group ended when {} #{} failed: {}", to_string(call.op()), call.sequence(), e.what()));
    auto context = ending_.context(call);
    context.cause = std::current_exception();
    throw BackendError(e.what(), std::move(context));
  }
  wait(std::move(started), call, bytes, culprit);
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
      ending_.end(fmt::format("the group ended when {} #{} failed: {}", to_string(call.op()), call.sequence(), text));
      throw BackendError(text, ending_.context(call));
    }
    if (waiting.is_spinning()) continue;
    const auto now = Deadline::Clock::now();
    if (ending_.is_ended() || now >= call.deadline().when()) give_up(std::move(started), call, culprit);
    waiting.pause(now, call.deadline());
  }
}

void MpiBackend::give_up(Started started, Call& call, int culprit) {
  runtime_.leave_behind(std::move(started.kept));
  runtime_.leave_behind(scratch_);
  ending_.check(call);
  ending_.end(fmt::format("the group ended when {} #{} missed its deadline: MPI cannot take it back",
                          to_string(call.op()), call.sequence()));
  auto context = ending_.context(call);
  if (culprit >= 0 && culprit != rank()) context.rank = culprit;
  throw OperationTimeoutError(
      fmt::format("{} #{} did not end within {} ms, and MPI cannot take it back: the group is of no more use, and the "
                  "operation's memory must stay",
                  to_string(call.op()), call.sequence(), call.timeout().count()),
      std::move(context));
}

// --- reductions
// ------------------------------------------------------------------------------------------------------

void MpiBackend::reduce_alone(const void* in, const Reduction& reduction) const {
  apply(reduction.dtype, reduction.op.kind(), in, reduction.out, reduction.count, reduction.op.factor(), 1);
}

void MpiBackend::fill(const Reduction& reduction, const Recipe& recipe, const void* from, std::size_t count,
                      void* to) const {
  const bool multiplies = reduction.op.kind() == Kind::premul_sum;
  if (recipe.is_wide) {
    widen(reduction.dtype, from, static_cast<float*>(to), count);
    if (multiplies) apply(DType::f32, Kind::premul_sum, to, to, count, reduction.op.factor(), 1);
  } else if (multiplies) {
    apply(reduction.dtype, Kind::premul_sum, from, to, count, reduction.op.factor(), 1);
  } else {
    copy_bytes(to, from, count * size_of(reduction.dtype));
  }
}

MpiBackend::Operands MpiBackend::prepare(const Reduction& reduction, const Recipe& recipe) {
  const bool is_fit = !recipe.is_wide && is_aligned(reduction.in, recipe.width) &&
                      (reduction.out == nullptr || is_aligned(reduction.out, recipe.width));
  if (is_fit && reduction.op.kind() != Kind::premul_sum) {
    return {.in = reduction.in == reduction.out ? nullptr : reduction.in, .out = reduction.out};
  }
  if (is_fit && reduction.out != nullptr) {
    fill(reduction, recipe, reduction.in, reduction.count, reduction.out);
    return {.out = reduction.out};
  }
  void* const ours = scratch_->get(Scratch::Use::in, reduction.count * recipe.per_value * recipe.width);
  fill(reduction, recipe, reduction.in, reduction.count, ours);
  return {.in = reduction.out == nullptr ? ours : nullptr, .out = reduction.out == nullptr ? nullptr : ours};
}

void MpiBackend::finish(const Reduction& reduction, const Recipe& recipe, void* at) const {
  const auto dtype = recipe.is_wide ? DType::f32 : reduction.dtype;
  if (reduction.op.kind() == Kind::avg) apply(dtype, Kind::avg, at, at, reduction.count, 1, size());
  if (recipe.is_wide) {
    narrow(reduction.dtype, static_cast<const float*>(at), reduction.out, reduction.count);
  } else {
    copy_bytes(reduction.out, at, reduction.bytes());
  }
}

namespace {

const void* advanced(const void* data, std::size_t bytes) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
}
void* advanced(void* data, std::size_t bytes) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes;
}

}  // namespace

void MpiBackend::all_reduce(const Reduction& reduction, Call& call) {
  check(call);
  if (size() == 1) return reduce_alone(reduction.in, reduction);
  if (reduction.count == 0) return barrier(call);
  const auto recipe = recipe_for(reduction.dtype, reduction.op.kind());
  const auto operands = prepare(reduction, recipe);
  const auto all = reduction.count * recipe.per_value;
  for (std::size_t done = 0; done < all; done += largest_count_) {
    const auto count = std::min(all - done, largest_count_);
    const auto at = done * recipe.width;
    run(call, count * recipe.width, -1, [&] {
      return library_.all_reduce(advanced(operands.in, at), advanced(operands.out, at), static_cast<int>(count),
                                 recipe.element, recipe.op_in(runtime_), communicator_);
    });
  }
  finish(reduction, recipe, operands.out);
}

void MpiBackend::reduce(const Reduction& reduction, int root, Call& call) {
  check(call);
  if (size() == 1) return reduce_alone(reduction.in, reduction);
  if (reduction.count == 0) return;
  const auto recipe = recipe_for(reduction.dtype, reduction.op.kind());
  const auto operands = prepare(reduction, recipe);
  const auto all = reduction.count * recipe.per_value;
  for (std::size_t done = 0; done < all; done += largest_count_) {
    const auto count = std::min(all - done, largest_count_);
    const auto at = done * recipe.width;
    run(call, count * recipe.width, root, [&] {
      return library_.reduce(advanced(operands.in, at), advanced(operands.out, at), static_cast<int>(count),
                             recipe.element, recipe.op_in(runtime_), root, communicator_);
    });
  }
  if (rank() == root) finish(reduction, recipe, operands.out);
}

void MpiBackend::reduce_scatter(std::span<const ConstBytes> ins, const Reduction& reduction, Call& call) {
  check(call);
  const auto own = place_of(rank());
  if (size() == 1) return reduce_alone(ins[0].data(), reduction);
  const auto total = total_of(ins) / size_of(reduction.dtype);
  if (total == 0) return barrier(call);
  const auto recipe = recipe_for(reduction.dtype, reduction.op.kind());
  if (total * recipe.per_value > largest_count_) {
    for (int root = 0; root < size(); ++root) {
      auto part = reduction;
      part.in = ins[place_of(root)].data();
      part.out = root == rank() ? reduction.out : nullptr;
      part.count = ins[place_of(root)].size() / size_of(reduction.dtype);
      reduce(part, root, call);
    }
    return;
  }
  std::vector<int> counts;
  counts.reserve(ins.size());
  for (const auto& each : ins) counts.push_back(static_cast<int>(each.size() / recipe.width));
  if (recipe.is_wide) {
    for (std::size_t i = 0; i < ins.size(); ++i) counts[i] = static_cast<int>(ins[i].size() / size_of(reduction.dtype));
  }

  // MPI wants the result apart from what goes in.
  const auto* const out = static_cast<const std::byte*>(reduction.out);
  const bool is_apart = std::none_of(ins.begin(), ins.end(), [&](const ConstBytes& each) {
    return each.data() < out + reduction.bytes() && out < each.data() + each.size();
  });
  const auto start = packed_start(ins);
  const void* in = nullptr;
  if (start && is_apart && !recipe.is_wide && reduction.op.kind() != Kind::premul_sum &&
      is_aligned(*start, recipe.width)) {
    in = *start;
  } else {
    auto* const ours = scratch_->get(Scratch::Use::in, total * recipe.per_value * recipe.width);
    std::size_t at = 0;
    for (const auto& each : ins) {
      const auto count = each.size() / size_of(reduction.dtype);
      if (count > 0) fill(reduction, recipe, each.data(), count, ours + at);
      at += count * recipe.per_value * recipe.width;
    }
    in = ours;
  }
  void* const to = reduction.count == 0 ? somewhere()
                   : recipe.is_wide || !is_aligned(out, recipe.width)
                       ? scratch_->get(Scratch::Use::out, place_of(counts[own]) * recipe.width)
                       : reduction.out;
  run(call, total * size_of(reduction.dtype), -1,
      [&] { return library_.reduce_scatter(in, to, counts, recipe.element, recipe.op_in(runtime_), communicator_); });
  if (reduction.count > 0) finish(reduction, recipe, to);
}

// --- moving data
// -----------------------------------------------------------------------------------------------------

void MpiBackend::broadcast_pieces(Bytes data, int root, Call& call) {
  for (std::size_t done = 0; done < data.size(); done += largest_count_) {
    const auto bytes = std::min(data.size() - done, largest_count_);
    run(call, bytes, root,
        [&] { return library_.broadcast(data.data() + done, static_cast<int>(bytes), root, communicator_); });
  }
}

void MpiBackend::broadcast(Bytes data, int root, Call& call) {
  check(call);
  if (size() > 1) broadcast_pieces(data, root, call);
}

void MpiBackend::all_gather(ConstBytes in, std::span<const Bytes> outs, Call& call) {
  check(call);
  const auto own = place_of(rank());
  const auto total = total_of(outs);
  if (size() == 1) return copy_bytes(outs[0].data(), in.data(), in.size());
  if (total == 0) return barrier(call);
  if (total > largest_count_) {
    copy_bytes(outs[own].data(), in.data(), in.size());
    for (int root = 0; root < size(); ++root) broadcast_pieces(outs[place_of(root)], root, call);
    return;
  }
  const auto start = packed_start(outs);
  auto* const to = start ? *start : scratch_->get(Scratch::Use::out, total);
  std::size_t before = 0;
  for (std::size_t i = 0; i < own; ++i) before += outs[i].size();
  const void* const from = in.empty() ? somewhere() : in.data() == to + before ? nullptr : in.data();
  if (all_equal(outs)) {
    run(call, total, -1, [&] { return library_.all_gather(from, to, static_cast<int>(in.size()), communicator_); });
  } else {
    std::vector<int> bytes;
    bytes.reserve(outs.size());
    for (const auto& each : outs) bytes.push_back(static_cast<int>(each.size()));
    run(call, total, -1, [&] { return library_.all_gather_uneven(from, to, bytes, communicator_); });
  }
  if (start) return;
  std::size_t at = 0;
  for (const auto& each : outs) {
    copy_bytes(each.data(), to + at, each.size());
    at += each.size();
  }
}

void MpiBackend::gather(ConstBytes in, std::span<const Bytes> outs, int root, Call& call) {
  check(call);
  if (in.empty()) return;
  if (size() == 1) return copy_bytes(outs[0].data(), in.data(), in.size());
  const auto most = std::max<std::size_t>(1, largest_count_ / place_of(size()));
  const bool is_root = rank() == root;
  const auto start = is_root && in.size() <= most ? packed_start(outs) : std::nullopt;
  for (std::size_t done = 0; done < in.size(); done += most) {
    const auto each = std::min(in.size() - done, most);
    std::byte* to = nullptr;
    if (is_root) to = start ? *start : scratch_->get(Scratch::Use::out, each * outs.size());
    const void* from = in.data() + done;
    if (is_root && from == to + place_of(rank()) * each) from = nullptr;
    run(call, each * place_of(size()), root,
        [&] { return library_.gather(from, to, static_cast<int>(each), root, communicator_); });
    if (!is_root || start) continue;
    for (std::size_t i = 0; i < outs.size(); ++i) copy_bytes(outs[i].data() + done, to + i * each, each);
  }
}

void MpiBackend::scatter(std::span<const ConstBytes> ins, Bytes out, int root, Call& call) {
  check(call);
  if (out.empty()) return;
  if (size() == 1) return copy_bytes(out.data(), ins[0].data(), out.size());
  const auto most = std::max<std::size_t>(1, largest_count_ / place_of(size()));
  const bool is_root = rank() == root;
  const auto start = is_root && out.size() <= most ? packed_start(ins) : std::nullopt;
  for (std::size_t done = 0; done < out.size(); done += most) {
    const auto each = std::min(out.size() - done, most);
    const std::byte* from = nullptr;
    if (start) {
      from = *start;
    } else if (is_root) {
      auto* const ours = scratch_->get(Scratch::Use::in, each * ins.size());
      for (std::size_t i = 0; i < ins.size(); ++i) copy_bytes(ours + i * each, ins[i].data() + done, each);
      from = ours;
    }
    void* to = out.data() + done;
    if (is_root && to == from + place_of(rank()) * each) to = nullptr;
    run(call, each * place_of(size()), root,
        [&] { return library_.scatter(from, to, static_cast<int>(each), root, communicator_); });
  }
}

void MpiBackend::all_to_all(std::span<const ConstBytes> ins, std::span<const Bytes> outs, Call& call) {
  check(call);
  if (size() == 1) return copy_bytes(outs[0].data(), ins[0].data(), ins[0].size());
  std::vector<Piece> sent;
  std::vector<Piece> received;
  sent.reserve(ins.size());
  received.reserve(outs.size());
  for (const auto& each : ins) sent.push_back({each.data(), each.size()});
  for (const auto& each : outs) received.push_back({each.data(), each.size()});
  run(call, total_of(ins) + total_of(outs), -1, [&] { return library_.all_to_all(sent, received, communicator_); });
}

void MpiBackend::barrier(Call& call) {
  check(call);
  if (size() > 1) run(call, 0, -1, [&] { return library_.barrier(communicator_); });
}

// --- point-to-point
// --------------------------------------------------------------------------------------------------

std::unique_ptr<Transfer> MpiBackend::start_send(ConstBytes data, int peer, int tag, Call& call) {
  check(call);
  return messages_.start_send(data, peer, tag, call);
}

std::unique_ptr<Transfer> MpiBackend::start_recv(Bytes data, int peer_or_any, int tag, Call& call) {
  check(call);
  return messages_.start_recv(data, peer_or_any, tag, call);
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
      auto context = ending_.context(call);
      if (peer >= 0) context.rank = peer;
      throw OperationTimeoutError(
          fmt::format("{} {} {} did not end within {} ms: {} has not {}", to_string(call.op()), sends ? "to" : "from",
                      whom, call.timeout().count(), whom, sends ? "received it" : "sent it"),
          std::move(context));
    }
    waiting.pause(now, call.deadline());
  }
}

void MpiBackend::send(ConstBytes data, int peer, int tag, Call& call) {
  complete(*start_send(data, peer, tag, call), call, data.size(), peer);
}

int MpiBackend::recv(Bytes data, int peer_or_any, int tag, Call& call) {
  const auto transfer = start_recv(data, peer_or_any, tag, call);
  complete(*transfer, call, data.size(), peer_or_any);
  return transfer->source();
}

void MpiBackend::rest(Deadline until) {
  // Relaxed: a hint that several threads may get wrong, and then one naps a little early or late.
  if (const auto ended = messages_.ended(); seen_ended_.exchange(ended, std::memory_order_relaxed) != ended) {
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
// ----------------------------------------------------------------------------------------------------------

BackendPtr MpiBackend::split(const BackendSplit& split, Deadline deadline) {
  // Making a communicator cannot be given up once begun: only when all have come is it tried.
  Call call(OpType::barrier, 0, deadline);
  barrier(call);
  const auto place = std::find(split.ranks.begin(), split.ranks.end(), rank());
  if (place == split.ranks.end()) return nullptr;
  MpiParts parts{.runtime = &runtime_,
                 .rank = static_cast<int>(place - split.ranks.begin()),
                 .group = split.id,
                 .own_cpus = own_cpus_};
  for (const int each : split.ranks) parts.world_ranks.push_back(world_ranks_[place_of(each)]);
  parts.communicator = create_communicator(runtime_, parts.world_ranks, split.id, deadline);
  return std::make_shared<MpiBackend>(std::move(parts));
}

void MpiBackend::abort(std::string_view reason) {
  ending_.end(fmt::format("rank {} aborted the group{}{}", rank(), reason.empty() ? "" : ": ", reason));
}

}  // namespace cohort::mpi
