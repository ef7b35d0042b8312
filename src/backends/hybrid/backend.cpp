// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hybrid/backend.h"

#include <cohort/prefix_store.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "backends/common/arithmetic.h"
#include "backends/hybrid/parts.h"
#include "backends/hybrid/transfers.h"
#include "group/transfer_timeout.h"

namespace cohort::hybrid {

namespace {

using Kind = ReduceOp::Kind;

/// Below this one leader does it all: a slice each would cost more steps than it saves bytes.
constexpr std::size_t sliced_bytes = std::size_t{64} << 10U;

/// Large reductions go in parts of about this size, so that shared memory and the network are used at the same time;
/// smaller parts cost more steps than they save (16 MiB in four: a quarter slower).
constexpr std::size_t part_bytes = std::size_t{16} << 20U;
constexpr std::size_t most_parts = 4;

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

/// What is left of an operation when the ranks of a host have done their part: their factors are applied, and the
/// division of an average waits for all.
ReduceOp op_here(ReduceOp op) {
  return op.kind() == Kind::avg ? ReduceOp::sum() : op;
}
ReduceOp op_between(ReduceOp op) {
  return op.kind() == Kind::avg || op.kind() == Kind::premul_sum ? ReduceOp::sum() : op;
}

}  // namespace

/// The elements, cut for the first `leaders` ranks of each host.
struct HybridBackend::Slices {
  std::size_t count;
  std::size_t element;
  int leaders;

  Slices(std::size_t elements, std::size_t element_bytes, const Placement& placement)
      : count(elements),
        element(element_bytes),
        leaders(elements * element_bytes < sliced_bytes ? 1 : placement.fewest()) {}

  bool is_leader(int local_rank) const { return local_rank < leaders; }
  std::size_t first(int local_rank) const { return count * at(std::min(local_rank, leaders)) / at(leaders); }
  std::size_t elements(int local_rank) const { return first(local_rank + 1) - first(local_rank); }
  template <class Byte>
  std::span<Byte> part(Byte* data, int local_rank) const {
    return {data + first(local_rank) * element, elements(local_rank) * element};
  }
  template <class Byte>
  std::vector<std::span<Byte>> parts(Byte* data, std::size_t ranks) const {
    std::vector<std::span<Byte>> all;
    for (std::size_t i = 0; i < ranks; ++i) all.push_back(part(data, static_cast<int>(i)));
    return all;
  }
};

// --- beginning and end

HybridBackend::HybridBackend(HybridParts parts, Deadline deadline)
    : Backend("hybrid", parts.rank, parts.placement.size()), parts_(std::move(parts)) {
  coordinator_ = std::make_unique<FailureCoordinator>(
      FailureCoordinator::Group{.id = parts_.group,
                                .store = parts_.store,
                                .rank = rank(),
                                .size = size(),
                                .is_part = parts_.world == nullptr},  // on one host all is said in shared memory
      deadline, [this](const Failure& failure) {
        // Ranks of this host may meet it there before they hear of it themselves.
        const auto reason = as_reason(failure);
        local().abort(reason);
        if (parts_.world != nullptr) parts_.world->abort(reason);
        if (parts_.rail != nullptr) parts_.rail->abort(reason);
      });
}

HybridBackend::~HybridBackend() {
  coordinator_->leave();
}

void HybridBackend::shutdown() {
  coordinator_->leave();
  local().shutdown();
  if (parts_.world != nullptr) parts_.world->shutdown();
  if (parts_.rail != nullptr) parts_.rail->shutdown();
}

void HybridBackend::abort(std::string_view reason) {
  coordinator_->abort(reason);
}

Capabilities HybridBackend::capabilities() const {
  auto all = parts_.local->capabilities();
  all.shrinking = false;
  if (parts_.world != nullptr) {
    const auto between = parts_.world->capabilities();
    all.operations &= between.operations;
    all.splitting = all.splitting && between.splitting;
    all.aborting = all.aborting && between.aborting;
    all.deterministic_order = false;
  }
  return all;
}

std::string HybridBackend::status() const {
  return parts_.local->status();
}

// --- errors

template <class Run>
void HybridBackend::guarded(const Doing& doing, Call& call, Run&& run) {
  coordinator_->check(call);
  const FailureCoordinator::OpScope scope(*coordinator_, doing);
  try {
    run();
  } catch (const BackendError& e) {
    explain(e, call);
  }
}

Failure HybridBackend::translated(const BackendError& error) const {
  const auto& whose = error.context();
  const auto& placement = parts_.placement;
  Failure failure{.kind = error.kind(), .rank = whose.rank.value_or(-1), .text = error.message()};
  if (parts_.world == nullptr || !whose.rank) return failure;
  if (whose.group == local_id(parts_.group, placement)) {
    failure.rank = placement.here().at(at(*whose.rank));
    failure.text += fmt::format(" (ranks as they count on this host, whose are {} of the group)",
                                fmt::join(placement.here(), ", "));
  } else if (whose.group == rail_id(parts_.group, placement.local_rank())) {
    failure.rank = placement.hosts().at(at(*whose.rank)).at(at(placement.local_rank()));
    failure.text += fmt::format(" (hosts as they count here; rank {} of the group)", failure.rank);
  }
  return failure;
}

void HybridBackend::explain(const BackendError& error, Call& call) {
  if (const auto told = failure_in(error.message())) coordinator_->adopt(*told);
  coordinator_->check(call);
  if (error.kind() == ErrorKind::timeout && parts_.world != nullptr) coordinator_->miss_deadline(call);
  // Somebody who is gone, or gave up, is known to all by name; a part only knows that it failed.
  if (error.kind() != ErrorKind::mismatch) coordinator_->await_news(call);
  coordinator_->fail(translated(error), call);
}

void HybridBackend::explain_transfer(const BackendError& error, const Call& call) {
  if (const auto told = failure_in(error.message())) coordinator_->adopt(*told);
  if (error.kind() != ErrorKind::timeout && error.kind() != ErrorKind::mismatch) coordinator_->await_news(call);
  coordinator_->check(call);
  throw_failure(translated(error), coordinator_->context(call));
}

// --- reductions

void HybridBackend::reduce_here(const Reduction& reduction, const Slices& slices, void* mine, Call& call) {
  const auto me = parts_.placement.local_rank();
  Reduction part = reduction;
  part.op = op_here(reduction.op);
  if (slices.leaders == 1) {
    part.out = me == 0 ? mine : nullptr;
    return local().reduce(part, 0, call);
  }
  const auto ins = slices.parts(static_cast<const std::byte*>(reduction.in), parts_.placement.here().size());
  part.out = mine;
  part.count = slices.elements(me);
  local().reduce_scatter(ins, part, call);
}

void HybridBackend::cross(const Reduction& reduction, Call& call) {
  const auto me = parts_.placement.local_rank();
  const Slices slices(reduction.count, size_of(reduction.dtype), parts_.placement);
  if (!slices.is_leader(me)) return;
  auto* const mine = slices.part(static_cast<std::byte*>(reduction.out), me).data();
  parts_.rail->all_reduce(
      {.in = mine, .out = mine, .count = slices.elements(me), .dtype = reduction.dtype, .op = op_between(reduction.op)},
      call);
  const Arithmetic arithmetic(reduction);
  if (arithmetic.has_after()) arithmetic.after(mine, slices.elements(me), size());
}

void HybridBackend::all_reduce(const Reduction& reduction, Call& call) {
  guarded(Doing::of(call, -1, reduction), call, [&] {
    if (parts_.world == nullptr) return local().all_reduce(reduction, call);
    if (reduction.count == 0) return barrier_of_all(call);
    const auto element = size_of(reduction.dtype);
    const auto combine = [&](const Reduction& part) {
      const Slices slices(part.count, element, parts_.placement);
      auto* const out = static_cast<std::byte*>(part.out);
      reduce_here(part, slices, slices.part(out, parts_.placement.local_rank()).data(), call);
    };
    const auto spread = [&](const Reduction& part) {
      spread_here({static_cast<std::byte*>(part.out), part.bytes()}, Slices(part.count, element, parts_.placement),
                  call);
    };
    const auto parts = std::clamp<std::size_t>(reduction.bytes() / part_bytes, 1, most_parts);
    if (parts == 1) {
      combine(reduction);
      cross(reduction, call);
      return spread(reduction);
    }
    const auto part = [&](std::size_t number) {
      const auto first = reduction.count * number / parts;
      auto its = reduction;
      its.in = static_cast<const std::byte*>(reduction.in) + first * element;
      its.out = static_cast<std::byte*>(reduction.out) + first * element;
      its.count = reduction.count * (number + 1) / parts - first;
      return its;
    };
    // While a part crosses to the other hosts, the next is combined here and the one before is spread.
    std::vector<Future<void>> crossings;
    try {
      for (std::size_t i = 0; i <= parts; ++i) {
        if (i < parts) {
          combine(part(i));
          crossings.push_back(start_crossing(part(i), call));
        }
        if (i == 0) continue;
        crossings[i - 1].value();
        spread(part(i - 1));
      }
    } catch (...) {
      // The caller's memory is his again when this returns.
      if (parts_.rail != nullptr) parts_.rail->abort("another part of the reduction failed");
      for (const auto& each : crossings) each.wait();
      throw;
    }
  });
}

Future<void> HybridBackend::start_crossing(const Reduction& reduction, Call& call) {
  Promise<void> done;
  if (parts_.rail == nullptr) {
    done.set_value();
    return done.future();
  }
  if (crossings_ == nullptr) crossings_ = std::make_unique<SerialExecutor>("cohort-rail");
  Call own(call.op(), call.sequence(), call.deadline());
  own.set_timeout(call.timeout());
  crossings_->run([this, reduction, own, done]() mutable {
    try {
      cross(reduction, own);
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  return done.future();
}

void HybridBackend::spread_here(Bytes data, const Slices& slices, Call& call) {
  if (slices.leaders == 1) return local().broadcast(data, 0, call);
  const auto parts = slices.parts(data.data(), parts_.placement.here().size());
  local().all_gather(parts[at(parts_.placement.local_rank())], parts, call);
}

void HybridBackend::reduce(const Reduction& reduction, int root, Call& call) {
  guarded(Doing::of(call, root, reduction), call, [&] {
    const auto& placement = parts_.placement;
    if (parts_.world == nullptr) return local().reduce(reduction, root, call);
    if (reduction.count == 0) return barrier_of_all(call);
    const auto me = placement.local_rank();
    const Slices slices(reduction.count, size_of(reduction.dtype), placement);
    auto* const out = static_cast<std::byte*>(reduction.out);
    Bytes mine;
    if (slices.is_leader(me)) {
      if (out != nullptr) {
        mine = slices.part(out, me);
      } else {
        const auto bytes = slices.elements(me) * slices.element;
        scratch_.resize(std::max(scratch_.size(), bytes));
        mine = Bytes(scratch_).first(bytes);
      }
    }
    reduce_here(reduction, slices, mine.data(), call);
    const bool is_home = placement.is_here(root);
    if (slices.is_leader(me)) {
      parts_.rail->reduce({.in = mine.data(),
                           .out = is_home ? mine.data() : nullptr,
                           .count = slices.elements(me),
                           .dtype = reduction.dtype,
                           .op = op_between(reduction.op)},
                          static_cast<int>(placement.host_of(root)), call);
      const Arithmetic arithmetic(reduction);
      if (is_home && arithmetic.has_after()) arithmetic.after(mine.data(), slices.elements(me), size());
    }
    if (!is_home) return;
    // A gather of pieces that differ in size: what it is called is all-to-all.
    std::vector<ConstBytes> sent(placement.here().size());
    std::vector<Bytes> got(placement.here().size());
    sent[at(placement.local_rank_of(root))] = mine;
    if (out != nullptr) got = slices.parts(out, placement.here().size());
    local().all_to_all(sent, got, call);
  });
}

/// For each host in turn its ranks' pieces are combined here, each by one rank of this host, who sends it to its owner;
/// the owner combines what came from the hosts, in their order.
void HybridBackend::reduce_scatter(std::span<const ConstBytes> ins, const Reduction& reduction, Call& call) {
  guarded(Doing::of(call, -1, 0), call, [&] {
    const auto& placement = parts_.placement;
    if (parts_.world == nullptr) return local().reduce_scatter(ins, reduction, call);
    const auto& hosts = placement.hosts();
    const auto here = placement.here().size();
    const auto me = at(placement.local_rank());
    const auto element = size_of(reduction.dtype);
    // This host's part for the ranks that are this one's share, one after another; then what others have for this rank.
    std::size_t own_share = 0;
    for (const auto& host : hosts) {
      for (auto i = me; i < host.size(); i += here) own_share += ins[at(host[i])].size();
    }
    const auto bytes = reduction.bytes();
    scratch_.resize(std::max(scratch_.size(), own_share + hosts.size() * bytes));
    std::vector<ConstBytes> partial(ins.size());
    Bytes room(scratch_);
    for (const auto& host : hosts) {
      for (std::size_t first = 0; first < host.size(); first += here) {
        std::vector<ConstBytes> pieces(here);
        for (std::size_t i = 0; i < here && first + i < host.size(); ++i) pieces[i] = ins[at(host[first + i])];
        const auto mine = room.first(pieces[me].size());
        local().reduce_scatter(
            pieces,
            {.out = mine.data(), .count = mine.size() / element, .dtype = reduction.dtype, .op = op_here(reduction.op)},
            call);
        if (first + me < host.size()) partial[at(host[first + me])] = mine;
        room = room.subspan(mine.size());
      }
    }
    std::vector<ConstBytes> sent(ins.size());
    std::vector<Bytes> got(ins.size());
    std::vector<const void*> sources;
    for (int to = 0; to < size(); ++to) {
      if (!placement.is_here(to)) sent[at(to)] = partial[at(to)];
    }
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      if (host == placement.host()) {
        sources.push_back(partial[at(rank())].data());
        continue;
      }
      const auto from = at(hosts[host][me % hosts[host].size()]);
      got[from] = room.first(bytes);
      room = room.subspan(bytes);
      sources.push_back(got[from].data());
    }
    parts_.world->all_to_all(sent, got, call);
    if (bytes == 0) return;
    const auto kind = reduction.op.kind() == Kind::premul_sum ? Kind::sum : reduction.op.kind();
    const std::vector<double> ones(sources.size(), 1.0);
    void* const out = reduction.out;
    reduce::find_kernel(reduction.dtype, kind)(
        {.data = sources.data(), .factors = ones.data(), .count = sources.size()}, {.data = &out, .count = 1},
        reduction.count, size());
  });
}

// --- data movement

void HybridBackend::broadcast(Bytes data, int root, Call& call) {
  guarded(Doing::of(call, root, data.size()), call, [&] {
    const auto& placement = parts_.placement;
    if (parts_.world == nullptr) return local().broadcast(data, root, call);
    if (data.empty()) return barrier_of_all(call);
    const bool is_home = placement.is_here(root);
    if (is_home) local().broadcast(data, placement.local_rank_of(root), call);
    const Slices slices(data.size(), 1, placement);
    if (slices.is_leader(placement.local_rank())) {
      parts_.rail->broadcast(slices.part(data.data(), placement.local_rank()),
                             static_cast<int>(placement.host_of(root)), call);
    }
    if (!is_home) spread_here(data, slices, call);
  });
}

/// Each rank's piece crosses to another host once, to one rank there, which hands it on.
void HybridBackend::all_gather(ConstBytes in, std::span<const Bytes> outs, Call& call) {
  guarded(Doing::of(call, -1, 0), call, [&] {
    const auto& placement = parts_.placement;
    const auto& here = placement.here();
    std::vector<Bytes> outs_here;
    outs_here.reserve(here.size());
    for (const int each : here) outs_here.push_back(outs[at(each)]);
    if (parts_.world == nullptr) return local().all_gather(in, outs_here, call);
    const auto delegate = [&](int of, const std::vector<int>& host) {
      return host[at(placement.local_rank_of(of)) % host.size()];
    };
    std::vector<ConstBytes> sent(outs.size());
    std::vector<Bytes> got(outs.size());
    for (const auto& host : placement.hosts()) {
      if (host != here) sent[at(delegate(rank(), host))] = in;
    }
    for (int from = 0; from < size(); ++from) {
      if (!placement.is_here(from) && delegate(from, here) == rank()) got[at(from)] = outs[at(from)];
    }
    parts_.world->all_to_all(sent, got, call);
    local().all_gather(in, outs_here, call);
    if (here.size() == 1) return;
    for (int from = 0; from < size(); ++from) {
      if (!placement.is_here(from)) {
        local().broadcast(outs[at(from)], placement.local_rank_of(delegate(from, here)), call);
      }
    }
  });
}

void HybridBackend::gather(ConstBytes in, std::span<const Bytes> outs, int root, Call& call) {
  guarded(Doing::of(call, root, 0), call, [&] {
    const auto& placement = parts_.placement;
    if (parts_.world == nullptr) return local().gather(in, outs, root, call);
    std::vector<Bytes> far(outs.begin(), outs.end());
    std::vector<Bytes> near;
    if (rank() == root) {
      for (const int each : placement.here()) near.push_back(std::exchange(far[at(each)], Bytes()));
    }
    const bool is_home = placement.is_here(root);
    parts_.world->gather(is_home ? ConstBytes() : in, far, root, call);
    if (is_home) local().gather(in, near, placement.local_rank_of(root), call);
  });
}

void HybridBackend::scatter(std::span<const ConstBytes> ins, Bytes out, int root, Call& call) {
  guarded(Doing::of(call, root, 0), call, [&] {
    const auto& placement = parts_.placement;
    if (parts_.world == nullptr) return local().scatter(ins, out, root, call);
    std::vector<ConstBytes> far(ins.begin(), ins.end());
    std::vector<ConstBytes> near;
    if (rank() == root) {
      for (const int each : placement.here()) near.push_back(std::exchange(far[at(each)], ConstBytes()));
    }
    const bool is_home = placement.is_here(root);
    parts_.world->scatter(far, is_home ? Bytes() : out, root, call);
    if (is_home) local().scatter(near, out, placement.local_rank_of(root), call);
  });
}

void HybridBackend::all_to_all(std::span<const ConstBytes> ins, std::span<const Bytes> outs, Call& call) {
  guarded(Doing::of(call, -1, 0), call, [&] {
    if (parts_.world == nullptr) return local().all_to_all(ins, outs, call);
    std::vector<ConstBytes> far_ins(ins.begin(), ins.end());
    std::vector<Bytes> far_outs(outs.begin(), outs.end());
    std::vector<ConstBytes> near_ins;
    std::vector<Bytes> near_outs;
    for (const int each : parts_.placement.here()) {
      near_ins.push_back(std::exchange(far_ins[at(each)], ConstBytes()));
      near_outs.push_back(std::exchange(far_outs[at(each)], Bytes()));
    }
    parts_.world->all_to_all(far_ins, far_outs, call);
    local().all_to_all(near_ins, near_outs, call);
  });
}

void HybridBackend::barrier_of_all(Call& call) {
  local().barrier(call);
  if (parts_.world == nullptr) return;
  if (parts_.placement.local_rank() == 0) parts_.rail->barrier(call);
  local().barrier(call);
}

void HybridBackend::barrier(Call& call) {
  guarded(Doing::of(call, -1, 0), call, [&] { barrier_of_all(call); });
}

// --- point to point

Route HybridBackend::road_to(int peer) {
  const auto& placement = parts_.placement;
  if (parts_.world == nullptr || placement.is_here(peer)) return {&local(), placement.local_rank_of(peer)};
  return {parts_.world.get(), peer};
}

std::unique_ptr<Transfer> HybridBackend::translated(std::unique_ptr<Transfer> inner, int peer, const Call& call) {
  return std::make_unique<TranslatedTransfer>(std::move(inner), peer,
                                              [this, call](const BackendError& e) { explain_transfer(e, call); });
}

std::unique_ptr<Transfer> HybridBackend::start_send(ConstBytes data, int peer, int tag, Call& call) {
  coordinator_->check(call);
  const auto route = road_to(peer);
  return translated(route.backend->start_send(data, route.peer, tag, call), -1, call);
}

std::unique_ptr<Transfer> HybridBackend::start_recv(Bytes data, int peer_or_any, int tag, Call& call) {
  coordinator_->check(call);
  if (peer_or_any != any_source) {
    const auto route = road_to(peer_or_any);
    return translated(route.backend->start_recv(data, route.peer, tag, call), peer_or_any, call);
  }
  if (parts_.world == nullptr) return local().start_recv(data, any_source, tag, call);
  return translated(
      std::make_unique<ReceiveFromEither>(local(), parts_.placement.here(), *parts_.world, data, tag, call), any_source,
      call);
}

void HybridBackend::send(ConstBytes data, int peer, int tag, Call& call) {
  coordinator_->check(call);
  const auto route = road_to(peer);
  try {
    route.backend->send(data, route.peer, tag, call);
  } catch (const BackendError& e) {
    explain_transfer(e, call);
  }
}

int HybridBackend::recv(Bytes data, int peer_or_any, int tag, Call& call) {
  if (peer_or_any == any_source && parts_.world != nullptr) {
    const auto transfer = start_recv(data, any_source, tag, call);
    while (!transfer->advance()) {
      if (call.deadline().expired()) throw transfer_timeout(call, any_source, coordinator_->context(call));
      rest(call.deadline());
    }
    return transfer->source();
  }
  coordinator_->check(call);
  const auto route = peer_or_any == any_source ? Route{&local(), any_source} : road_to(peer_or_any);
  try {
    const int from = route.backend->recv(data, route.peer, tag, call);
    return peer_or_any == any_source ? from : peer_or_any;
  } catch (const BackendError& e) {
    explain_transfer(e, call);
  }
}

void HybridBackend::rest(Deadline until) {
  // What comes through shared memory is quick, and looked for by whoever rests there; the engine's is not as quick.
  local().rest(earlier(until, Deadline::after(std::chrono::milliseconds(1))));
}

// --- memory and children

GroupMemory HybridBackend::allocate(std::size_t bytes) {
  return local().allocate(bytes);
}

BackendPtr HybridBackend::split(const BackendSplit& split, Deadline deadline) {
  coordinator_->check(Call(OpType::coalesced, 0, deadline));
  const auto number = splits_++;
  const auto& placement = parts_.placement;
  std::vector<int> ranks_here;
  for (const int each : split.ranks) {
    if (placement.is_here(each)) ranks_here.push_back(placement.local_rank_of(each));
  }
  const auto found = std::find(split.ranks.begin(), split.ranks.end(), rank());
  const bool is_member = found != split.ranks.end();
  HybridParts child;
  child.group = split.id;
  if (is_member) {
    child.rank = static_cast<int>(found - split.ranks.begin());
    child.placement = placement.among(split.ranks, child.rank);
    child.store = std::make_shared<PrefixStore>(fmt::format("split/{}", number), parts_.store->clone());
  }
  if (!ranks_here.empty()) {
    child.local = local().split({.ranks = ranks_here,
                                 .timeout = split.timeout,
                                 .id = is_member ? local_id(split.id, child.placement) : split.id},
                                deadline);
  }
  if (parts_.world != nullptr) {
    child.world = parts_.world->split({.ranks = split.ranks, .timeout = split.timeout, .id = split.id}, deadline);
  }
  if (!is_member) return nullptr;
  if (child.placement.hosts().size() == 1) {
    child.world = nullptr;
  } else {
    child.rail = make_rail(*child.world, child.placement, split.id, deadline);
  }
  return std::make_shared<HybridBackend>(std::move(child), deadline);
}

}  // namespace cohort::hybrid
