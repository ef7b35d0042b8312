// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hybrid/backend.h"

#include <cohort/prefix_store.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "backends/common/arithmetic.h"
#include "backends/hybrid/parts.h"
#include "backends/hybrid/transfers.h"
#include "core/rank_index.h"
#include "group/own_part.h"
#include "group/transfer_timeout.h"

namespace cohort::hybrid {

namespace {

using Kind = ReduceOp::Kind;

/// Below this size one leader per host does all the work: one slice per leader would cost more steps than it saves
/// bytes.
constexpr std::size_t sliced_bytes = std::size_t{64} << 10U;

/// Large reductions are cut into parts of about this size, so that shared memory and the network are used at the same
/// time. Smaller parts cost more steps than they save (16 MiB in four parts is a quarter slower).
constexpr std::size_t part_bytes = std::size_t{16} << 20U;
constexpr std::size_t most_parts = 4;

/// How an operation divides into one within a host and one between hosts: factors are applied within the host, and the
/// division of an average is done last, over all ranks.
ReduceOp op_on_host(ReduceOp op) {
  return op.kind() == Kind::avg ? ReduceOp::sum() : op;
}
ReduceOp op_between_hosts(ReduceOp op) {
  return op.kind() == Kind::avg || op.kind() == Kind::premul_sum ? ReduceOp::sum() : op;
}

}  // namespace

/// The elements, cut into slices for the first `leaders` ranks of each host.
struct HybridBackend::LeaderSlices {
  std::size_t count;
  std::size_t element;
  int leaders;

  LeaderSlices(std::size_t elements, std::size_t element_bytes, const Placement& placement)
      : count(elements),
        element(element_bytes),
        leaders(elements * element_bytes < sliced_bytes ? 1 : placement.fewest()) {}

  bool is_leader(int local_rank) const { return local_rank < leaders; }
  std::size_t first(int local_rank) const {
    return count * index_of(std::min(local_rank, leaders)) / index_of(leaders);
  }
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

// --- construction and shutdown

HybridBackend::HybridBackend(HybridParts parts, Deadline deadline)
    : Backend("hybrid", parts.rank, parts.placement.size()),
      parts_(std::move(parts)),
      local_(dynamic_cast<shm::LocalBackend&>(*parts_.local)) {
  coordinator_ = std::make_unique<FailureCoordinator>(
      FailureCoordinator::Group{.id = parts_.group,
                                .store = parts_.store,
                                .rank = rank(),
                                .size = size(),
                                .is_part = parts_.world == nullptr},  // on one host, shared memory reports failures
      deadline, [this](const Failure& failure) {
        // Ranks of this host may see the failure in shared memory before they are told otherwise. Errors of the other
        // parts reach this rank only, which knows the failure.
        local().end_with(failure);
        if (parts_.world != nullptr) parts_.world->abort(failure.text);
        if (parts_.rail != nullptr) parts_.rail->abort(failure.text);
      });
}

HybridBackend::~HybridBackend() {
  coordinator_->leave();
}

void HybridBackend::shutdown(Deadline deadline) {
  coordinator_->leave();
  local().shutdown(deadline);
  if (parts_.world != nullptr) parts_.world->shutdown(deadline);
  if (parts_.rail != nullptr) parts_.rail->shutdown(deadline);
}

void HybridBackend::abort(std::string_view reason) {
  coordinator_->abort(reason);
}

Capabilities HybridBackend::capabilities() const {
  auto all = parts_.local->capabilities();
  if (parts_.world != nullptr) {
    const auto between = parts_.world->capabilities();
    all.shrinking = false;
    all.regrouping = between.regrouping;
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
void HybridBackend::guarded(const Operation& op, Call& call, Run&& run) {
  coordinator_->check(call);
  const auto signature = OpSignature::of(op);
  const FailureCoordinator::OpScope scope(*coordinator_, signature, call.sequence());
  try {
    if (parts_.world == nullptr) {
      local().perform(op, call);
    } else {
      // The parts are operations of bytes, to leaders: they do not show everything that the ranks must agree on.
      call.set_whole(short_digest(signature.digest(0)));
      run();
    }
  } catch (const BackendError& e) {
    throw_explained(e, call);
  }
}

Failure HybridBackend::translated(const BackendError& error) const {
  const auto& placement = parts_.placement;
  auto failure = failure_of(error);
  if (parts_.world == nullptr || failure.rank < 0) return failure;
  const auto& group = error.context().group;
  if (group == local_id(parts_.group, placement)) {
    failure.rank = placement.here().at(index_of(failure.rank));
    failure.text +=
        fmt::format(" (numbered within this host, whose ranks in the group are {})", fmt::join(placement.here(), ", "));
  } else if (group == rail_id(parts_.group, placement.local_rank())) {
    failure.rank = placement.hosts().at(index_of(failure.rank)).at(index_of(placement.local_rank()));
    failure.text += fmt::format(" (numbered by host; it is rank {} of the group)", failure.rank);
  }
  return failure;
}

void HybridBackend::throw_explained(const BackendError& error, Call& call) {
  if (const auto told = failure_of(error).cause) coordinator_->adopt(*told);
  coordinator_->check(call);
  if (error.kind() == ErrorKind::timeout && parts_.world != nullptr) coordinator_->miss_deadline(call);
  // A rank that is gone or has failed is published by name; a part of the group only knows that something failed.
  const auto failure = translated(error);
  if (const auto departure = departure_behind(failure)) coordinator_->fail(*departure, call);
  if (error.kind() != ErrorKind::mismatch) coordinator_->await_news(call);
  coordinator_->fail(failure, call);
}

std::optional<Failure> HybridBackend::departure_behind(const Failure& failure) {
  if (failure.kind != ErrorKind::peer_lost) return std::nullopt;
  for (const auto& each : coordinator_->departures()) {
    if (each.rank == failure.rank) return each.failure();
  }
  return std::nullopt;
}

void HybridBackend::explain_transfer(const BackendError& error, const Call& call) {
  if (const auto told = failure_of(error).cause) coordinator_->adopt(*told);
  coordinator_->check(call);
  const auto failure = translated(error);
  if (const auto departure = departure_behind(failure)) throw_failure(*departure, coordinator_->context(call));
  if (error.kind() != ErrorKind::timeout && error.kind() != ErrorKind::mismatch) coordinator_->await_news(call);
  coordinator_->check(call);
  throw_failure(failure, coordinator_->context(call));
}

// --- reductions

void HybridBackend::reduce_on_host(const Operation& op, const LeaderSlices& slices, void* mine, Call& call) {
  const auto me = parts_.placement.local_rank();
  const Bytes out(static_cast<std::byte*>(mine), mine == nullptr ? 0 : slices.elements(me) * slices.element);
  if (slices.leaders == 1) {
    local().perform(Operation::reduce_to(0, op.in(), me == 0 ? out : Bytes(), op.dtype, op_on_host(op.reduce)), call);
    return;
  }
  const auto ins = slices.parts(op.in().data(), parts_.placement.here().size());
  local().perform(Operation::reduce_scatter(ins, out, op.dtype, op_on_host(op.reduce)), call);
}

void HybridBackend::reduce_between_hosts(const Operation& op, Call& call) {
  const auto me = parts_.placement.local_rank();
  const LeaderSlices slices(op.count_of(op.out()), size_of(op.dtype), parts_.placement);
  if (!slices.is_leader(me)) return;
  const auto mine = slices.part(op.out().data(), me);
  parts_.rail->perform(Operation::all_reduce(mine, mine, op.dtype, op_between_hosts(op.reduce)), call);
  const Arithmetic arithmetic(op);
  if (arithmetic.has_after()) arithmetic.after(mine.data(), slices.elements(me), size());
}

void HybridBackend::all_reduce(const Operation& op, Call& call) {
  guarded(op, call, [&] {
    const auto count = op.count_of(op.out());
    if (count == 0) return barrier_of_all(call);
    const auto element = size_of(op.dtype);
    const auto slices_of = [&](const Operation& part) {
      return LeaderSlices(part.count_of(part.out()), element, parts_.placement);
    };
    const auto combine = [&](const Operation& part) {
      const auto slices = slices_of(part);
      reduce_on_host(part, slices, slices.part(part.out().data(), parts_.placement.local_rank()).data(), call);
    };
    const auto spread = [&](const Operation& part) { spread_on_host(part.out(), slices_of(part), call); };
    const auto parts = std::clamp<std::size_t>(op.out().size() / part_bytes, 1, most_parts);
    if (parts == 1) {
      combine(op);
      reduce_between_hosts(op, call);
      return spread(op);
    }
    const auto part = [&](std::size_t number) {
      const auto first = count * number / parts * element;
      const auto bytes = count * (number + 1) / parts * element - first;
      return Operation::all_reduce(op.in().subspan(first, bytes), op.out().subspan(first, bytes), op.dtype, op.reduce);
    };
    // While one part crosses to the other hosts, the next is combined here and the previous one is distributed.
    std::vector<Future<void>> crossings;
    try {
      for (std::size_t i = 0; i <= parts; ++i) {
        if (i < parts) {
          combine(part(i));
          crossings.push_back(start_between_hosts(part(i), call));
        }
        if (i == 0) continue;
        crossings[i - 1].value();
        spread(part(i - 1));
      }
    } catch (...) {
      // When this returns, the caller may reuse its memory.
      if (parts_.rail != nullptr) parts_.rail->abort("another part of the reduction failed");
      for (const auto& each : crossings) each.wait();
      throw;
    }
  });
}

Future<void> HybridBackend::start_between_hosts(const Operation& op, Call& call) {
  Promise<void> done;
  if (parts_.rail == nullptr) {
    done.set_value();
    return done.future();
  }
  if (crossings_ == nullptr) crossings_ = std::make_unique<SerialExecutor>("cohort-rail");
  crossings_->run([this, op, own = call.detached(), done]() mutable {
    try {
      reduce_between_hosts(op, own);
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  return done.future();
}

void HybridBackend::spread_on_host(Bytes data, const LeaderSlices& slices, Call& call) {
  if (slices.leaders == 1) {
    local().perform(Operation::broadcast(data, 0), call);
    return;
  }
  const auto parts = slices.parts(data.data(), parts_.placement.here().size());
  local().perform(Operation::all_gather(parts[index_of(parts_.placement.local_rank())], parts), call);
}

void HybridBackend::reduce(const Operation& op, Call& call) {
  guarded(op, call, [&] {
    const auto& placement = parts_.placement;
    const auto count = op.count_of(op.in());
    if (count == 0) return barrier_of_all(call);
    const auto me = placement.local_rank();
    const LeaderSlices slices(count, size_of(op.dtype), placement);
    auto* const out = op.out().data();
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
    reduce_on_host(op, slices, mine.data(), call);
    const bool is_home = placement.is_here(op.root);
    if (slices.is_leader(me)) {
      parts_.rail->perform(Operation::reduce_to(static_cast<int>(placement.host_of(op.root)), mine,
                                                is_home ? mine : Bytes(), op.dtype, op_between_hosts(op.reduce)),
                           call);
      const Arithmetic arithmetic(op);
      if (is_home && arithmetic.has_after()) arithmetic.after(mine.data(), slices.elements(me), size());
    }
    if (!is_home) return;
    // A gather of pieces that differ in size is an all-to-all in which most ranks send nothing.
    std::vector<ConstBytes> sent(placement.here().size());
    std::vector<Bytes> got(placement.here().size());
    sent[index_of(placement.local_rank_of(op.root))] = mine;
    if (out != nullptr) got = slices.parts(out, placement.here().size());
    local().perform(Operation::all_to_all(sent, got), call);
  });
}

/// For each host in turn, the pieces for its ranks are combined here, each by one rank of this host, which sends the
/// result to its owner. The owner combines the results of all hosts, in the order of the hosts.
void HybridBackend::reduce_scatter(const Operation& op, Call& call) {
  guarded(op, call, [&] {
    const auto& ins = op.ins;
    const auto& placement = parts_.placement;
    const auto& hosts = placement.hosts();
    const auto here = placement.here().size();
    const auto me = index_of(placement.local_rank());
    // Room for this host's contributions to the ranks that this rank is responsible for, one after another, followed by
    // what the other hosts contribute to this rank.
    std::size_t own_share = 0;
    for (const auto& host : hosts) {
      for (auto i = me; i < host.size(); i += here) own_share += ins[index_of(host[i])].size();
    }
    const auto bytes = op.out().size();
    scratch_.resize(std::max(scratch_.size(), own_share + hosts.size() * bytes));
    std::vector<ConstBytes> partial(ins.size());
    Bytes room(scratch_);
    for (const auto& host : hosts) {
      for (std::size_t first = 0; first < host.size(); first += here) {
        std::vector<ConstBytes> pieces(here);
        for (std::size_t i = 0; i < here && first + i < host.size(); ++i) pieces[i] = ins[index_of(host[first + i])];
        const auto mine = room.first(pieces[me].size());
        local().perform(Operation::reduce_scatter(pieces, mine, op.dtype, op_on_host(op.reduce)), call);
        if (first + me < host.size()) partial[index_of(host[first + me])] = mine;
        room = room.subspan(mine.size());
      }
    }
    std::vector<ConstBytes> sent(ins.size());
    std::vector<Bytes> got(ins.size());
    std::vector<const void*> sources;
    for (int to = 0; to < size(); ++to) {
      if (!placement.is_here(to)) sent[index_of(to)] = partial[index_of(to)];
    }
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      if (host == placement.host()) {
        sources.push_back(partial[index_of(rank())].data());
        continue;
      }
      const auto from = index_of(hosts[host][me % hosts[host].size()]);
      got[from] = room.first(bytes);
      room = room.subspan(bytes);
      sources.push_back(got[from].data());
    }
    parts_.world->perform(Operation::all_to_all(sent, got), call);
    if (bytes == 0) return;
    const auto kind = op.reduce.kind() == Kind::premul_sum ? Kind::sum : op.reduce.kind();
    const std::vector<double> ones(sources.size(), 1.0);
    void* const out = op.out().data();
    reduce::find_kernel(op.dtype, kind)({.data = sources.data(), .factors = ones.data(), .count = sources.size()},
                                        {.data = &out, .count = 1}, op.count_of(op.out()), size());
  });
}

// --- data movement

void HybridBackend::broadcast(const Operation& op, Call& call) {
  guarded(op, call, [&] {
    const auto data = op.out();
    const auto& placement = parts_.placement;
    if (data.empty()) return barrier_of_all(call);
    const bool is_home = placement.is_here(op.root);
    if (is_home) local().perform(Operation::broadcast(data, placement.local_rank_of(op.root)), call);
    const LeaderSlices slices(data.size(), 1, placement);
    if (slices.is_leader(placement.local_rank())) {
      parts_.rail->perform(Operation::broadcast(slices.part(data.data(), placement.local_rank()),
                                                static_cast<int>(placement.host_of(op.root))),
                           call);
    }
    if (!is_home) spread_on_host(data, slices, call);
  });
}

/// Each rank's piece crosses to another host once, to one rank there, which distributes it.
void HybridBackend::all_gather(const Operation& op, Call& call) {
  guarded(op, call, [&] {
    const auto in = op.in();
    const auto& outs = op.outs;
    const auto& placement = parts_.placement;
    const auto& here = placement.here();
    std::vector<Bytes> outs_here;
    outs_here.reserve(here.size());
    for (const int each : here) outs_here.push_back(outs[index_of(each)]);
    const auto delegate = [&](int of, const std::vector<int>& host) {
      return host[index_of(placement.local_rank_of(of)) % host.size()];
    };
    std::vector<ConstBytes> sent(outs.size());
    std::vector<Bytes> got(outs.size());
    for (const auto& host : placement.hosts()) {
      if (host != here) sent[index_of(delegate(rank(), host))] = in;
    }
    for (int from = 0; from < size(); ++from) {
      if (!placement.is_here(from) && delegate(from, here) == rank()) got[index_of(from)] = outs[index_of(from)];
    }
    parts_.world->perform(Operation::all_to_all(sent, got), call);
    local().perform(Operation::all_gather(in, outs_here), call);
    if (here.size() == 1) return;
    for (int from = 0; from < size(); ++from) {
      if (placement.is_here(from)) continue;
      local().perform(Operation::broadcast(outs[index_of(from)], placement.local_rank_of(delegate(from, here))), call);
    }
  });
}

void HybridBackend::gather(const Operation& op, Call& call) {
  guarded(op, call, [&] {
    const auto& placement = parts_.placement;
    std::vector<Bytes> far(op.outs.begin(), op.outs.end());
    std::vector<Bytes> near;
    if (rank() == op.root) {
      for (const int each : placement.here()) near.push_back(std::exchange(far[index_of(each)], Bytes()));
    }
    const bool is_home = placement.is_here(op.root);
    parts_.world->perform(Operation::gather(is_home ? ConstBytes() : op.in(), far, op.root), call);
    if (is_home) local().perform(Operation::gather(op.in(), near, placement.local_rank_of(op.root)), call);
  });
}

void HybridBackend::scatter(const Operation& op, Call& call) {
  guarded(op, call, [&] {
    const auto& placement = parts_.placement;
    std::vector<ConstBytes> far(op.ins.begin(), op.ins.end());
    std::vector<ConstBytes> near;
    if (rank() == op.root) {
      for (const int each : placement.here()) near.push_back(std::exchange(far[index_of(each)], ConstBytes()));
    }
    const bool is_home = placement.is_here(op.root);
    parts_.world->perform(Operation::scatter(far, is_home ? Bytes() : op.out(), op.root), call);
    if (is_home) local().perform(Operation::scatter(near, op.out(), placement.local_rank_of(op.root)), call);
  });
}

void HybridBackend::all_to_all(const Operation& op, Call& call) {
  guarded(op, call, [&] {
    std::vector<ConstBytes> far_ins(op.ins.begin(), op.ins.end());
    std::vector<Bytes> far_outs(op.outs.begin(), op.outs.end());
    std::vector<ConstBytes> near_ins;
    std::vector<Bytes> near_outs;
    for (const int each : parts_.placement.here()) {
      near_ins.push_back(std::exchange(far_ins[index_of(each)], ConstBytes()));
      near_outs.push_back(std::exchange(far_outs[index_of(each)], Bytes()));
    }
    parts_.world->perform(Operation::all_to_all(far_ins, far_outs), call);
    local().perform(Operation::all_to_all(near_ins, near_outs), call);
  });
}

void HybridBackend::barrier_of_all(Call& call) {
  local().perform(Operation::barrier(), call);
  if (parts_.placement.local_rank() == 0) parts_.rail->perform(Operation::barrier(), call);
  local().perform(Operation::barrier(), call);
}

void HybridBackend::barrier(const Operation& op, Call& call) {
  guarded(op, call, [&] { barrier_of_all(call); });
}

// --- point to point

Route HybridBackend::route_to(int peer) {
  const auto& placement = parts_.placement;
  if (parts_.world == nullptr || placement.is_here(peer)) return {&local(), placement.local_rank_of(peer)};
  return {parts_.world.get(), peer};
}

std::unique_ptr<Transfer> HybridBackend::translated(std::unique_ptr<Transfer> inner, int peer, const Call& call) {
  return std::make_unique<TranslatedTransfer>(std::move(inner), peer,
                                              [this, call](const BackendError& e) { explain_transfer(e, call); });
}

namespace {

/// A message as it is for the backend that carries it, where the peer has another number.
Operation routed(const Operation& op, int peer) {
  auto message = op;
  message.peer = peer;
  message.input_buffers = {};
  message.output_buffers = {};
  return message;
}

}  // namespace

std::unique_ptr<Transfer> HybridBackend::start_send(const Operation& op, Call& call) {
  coordinator_->check(call);
  const auto route = route_to(op.peer);
  return translated(route.backend->start_send(routed(op, route.peer), call), -1, call);
}

std::unique_ptr<Transfer> HybridBackend::start_recv(const Operation& op, Call& call) {
  coordinator_->check(call);
  if (op.peer != any_source) {
    const auto route = route_to(op.peer);
    return translated(route.backend->start_recv(routed(op, route.peer), call), op.peer, call);
  }
  if (parts_.world == nullptr) return local().start_recv(op, call);
  return translated(std::make_unique<ReceiveFromEither>(local(), parts_.placement.here(), *parts_.world,
                                                        routed(op, any_source), call),
                    any_source, call);
}

void HybridBackend::send(const Operation& op, Call& call) {
  coordinator_->check(call);
  const auto route = route_to(op.peer);
  try {
    route.backend->perform(routed(op, route.peer), call);
  } catch (const BackendError& e) {
    explain_transfer(e, call);
  }
}

int HybridBackend::recv(const Operation& op, Call& call) {
  if (op.peer == any_source && parts_.world != nullptr) {
    const auto transfer = start_recv(op, call);
    while (!transfer->advance()) {
      if (call.deadline().expired()) throw transfer_timeout(call, any_source, coordinator_->context(call));
      rest(call.deadline());
    }
    return transfer->source();
  }
  coordinator_->check(call);
  const auto route = op.peer == any_source ? Route{&local(), any_source} : route_to(op.peer);
  try {
    const int from = route.backend->perform(routed(op, route.peer), call);
    return op.peer == any_source ? from : op.peer;
  } catch (const BackendError& e) {
    explain_transfer(e, call);
  }
}

void HybridBackend::rest(Deadline until) {
  // Messages through shared memory are quick, and local().rest() notices them. Messages through the engine are not as
  // quick, so checking every millisecond suffices.
  local().rest(earlier(until, Deadline::after(std::chrono::milliseconds(1))));
}

// --- memory and subgroups

GroupMemory HybridBackend::allocate(std::size_t bytes) {
  return local().allocate(bytes);
}

BackendPtr HybridBackend::split(const BackendSplit& split, Deadline deadline) {
  return partition(std::span(&split, 1), deadline);
}

BackendPtr HybridBackend::partition(std::span<const BackendSplit> parts, Deadline deadline) {
  Call call(OpType::coalesced, index_of(splits_), deadline);
  coordinator_->check(call);
  const FailureCoordinator::OpScope scope(*coordinator_, {.op = call.op()}, call.sequence());
  try {
    return divide(parts, deadline);
  } catch (const BackendError& e) {
    // On one host shared memory has told the others if the group is over; it may also go on without a new one.
    if (parts_.world == nullptr && !coordinator_->failure() && failure_of(e).cause == nullptr) throw;
    throw_explained(e, call);
  }
}

BackendPtr HybridBackend::divide(std::span<const BackendSplit> parts, Deadline deadline) {
  const auto number = splits_++;
  const auto& placement = parts_.placement;
  const auto own = find_own_part(parts, rank());
  HybridParts child;
  if (own) {
    const auto& part = parts[own->index];
    child.group = part.id;
    child.rank = own->rank;
    child.placement = placement.among(part.ranks, child.rank);
    child.store = std::make_shared<PrefixStore>(fmt::format("split/{}/{}", number, own->index), parts_.store->clone());
  }
  std::vector<BackendSplit> here;
  for (std::size_t index = 0; index < parts.size(); ++index) {
    const bool is_own = own && own->index == index;
    BackendSplit local{.timeout = parts[index].timeout,
                       .id = is_own ? local_id(parts[index].id, child.placement) : parts[index].id};
    for (const int each : parts[index].ranks) {
      if (placement.is_here(each)) local.ranks.push_back(placement.local_rank_of(each));
    }
    if (!local.ranks.empty()) here.push_back(std::move(local));
  }
  if (!here.empty()) child.local = local().partition(here, deadline);
  if (parts_.world != nullptr) child.world = parts_.world->partition(parts, deadline);
  if (!own) return nullptr;
  if (child.placement.hosts().size() == 1) {
    child.world = nullptr;
  } else {
    child.rail = make_rail(*child.world, child.placement, child.group, deadline);
  }
  return std::make_shared<HybridBackend>(std::move(child), deadline);
}

BackendShrunk HybridBackend::shrink(std::span<const int> excluded, Deadline deadline) {
  if (parts_.world != nullptr) refuse(fmt::format("shrink with engine {}", parts_.world->name()));
  auto shrunk = local().shrink(excluded, deadline);
  if (shrunk.backend == nullptr) return {};
  const auto name = fmt::format("shrunk[{}]", fmt::join(shrunk.ranks, ","));
  HybridParts rest;
  rest.group = fmt::format("{}/{}", parts_.group, name);
  rest.store = std::make_shared<PrefixStore>(name, parts_.store);
  rest.rank = shrunk.backend->rank();
  rest.placement = parts_.placement.among(shrunk.ranks, rest.rank);
  rest.local = std::move(shrunk.backend);
  return {.ranks = std::move(shrunk.ranks), .backend = std::make_shared<HybridBackend>(std::move(rest), deadline)};
}

}  // namespace cohort::hybrid
