// SPDX-License-Identifier: BSD-3-Clause
#include "backends/gloo/backend.h"

#include <cohort/prefix_store.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "backends/common/arithmetic.h"
#include "backends/common/deadline_timer.h"
#include "backends/common/joining.h"
#include "backends/gloo/exchange.h"
#include "backends/gloo/slots.h"
#include "core/log_format.h"
#include "core/random.h"
#include "core/rank_index.h"
#include "group/own_part.h"
#include "group/transfer_timeout.h"
#include "store/handshake.h"

namespace cohort::gloo {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds leaving_timeout{2000};
constexpr auto proof_key = "proof";

/// A timeout for Gloo, which adds it to the current time and takes zero as "no timeout".
milliseconds gloo_timeout(Deadline deadline) {
  constexpr auto longest = std::chrono::hours(24 * 365);
  if (deadline.is_never()) return longest;
  return std::clamp(std::chrono::ceil<milliseconds>(deadline.remaining()), milliseconds(1), milliseconds(longest));
}

bool are_equal_in_size(std::span<const Bytes> pieces) {
  return std::ranges::all_of(pieces, [&](const Bytes& each) { return each.size() == pieces[0].size(); });
}

bool are_adjacent(std::span<const Bytes> pieces) {
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    if (pieces[i].data() != pieces[i - 1].data() + pieces[i - 1].size()) return false;
  }
  return true;
}

void copy(ConstBytes from, Bytes to) {
  if (!from.empty() && from.data() != to.data()) std::memmove(to.data(), from.data(), from.size());
}

}  // namespace

// --- construction and shutdown

GlooBackend::GlooBackend(GlooParts parts, Deadline deadline)
    : Backend("gloo", parts.rank, parts.size), parts_(std::move(parts)) {
  if (size() > 1) {
    mesh_ = parts_.make_mesh(
        {.rank = rank(), .size = size(), .address = parts_.address, .timeout = gloo_timeout(deadline) / 5});
    join(deadline);
  }
  point_to_point_ = std::make_unique<PointToPoint>(mesh_, rank(), size());
  coordinator_ = std::make_shared<FailureCoordinator>(
      FailureCoordinator::Group{
          .id = parts_.group, .store = parts_.store, .rank = rank(), .size = size(), .is_part = parts_.is_part},
      deadline, [this](const Failure& failure) {
        has_failed_ = true;
        if (mesh_ != nullptr) mesh_->fail(failure.text);
      });
}

GlooBackend::~GlooBackend() {
  shutdown(Deadline::never());
}

void GlooBackend::join(Deadline deadline) {
  FailureWatch watch(deadline, parts_.failure_check, [this] { mesh_->fail("the group cannot be made in time"); });
  try {
    connect(deadline);
    prove(deadline);
  } catch (const DistributedError&) {
    if (const auto failure = watch.failure()) throw_failure(*failure, {.group = parts_.group, .op = "new_group"});
    throw;
  }
  // Every other rank has sent its proof, so it has read all that it needs of the store, and each rank deletes what it
  // has written.
  parts_.store->delete_key(mesh_key_, deadline);
  if (rank() == 0) parts_.store->delete_key(proof_key, deadline);
}

void GlooBackend::connect(Deadline deadline) {
  auto& store = *parts_.store;
  int coming = -1;  // the rank whose address is awaited
  try {
    mesh_->connect(
        [&](const std::string& key, const std::string& value) {
          mesh_key_ = key;
          store.set(key, value, deadline);
        },
        [&](const std::string& key) {
          ++coming;
          if (coming == rank()) ++coming;
          return ask_store(deadline, parts_.failure_check, [&](Deadline until) { return store.get(key, until); });
        });
  } catch (const StoreTimeoutError&) {
    throw OperationTimeoutError(fmt::format("rank {} did not join the group in time", coming),
                                {.group = parts_.group, .op = "new_group", .rank = coming});
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    const auto text = fmt::format("no connection to rank {} from {}: {}", coming, parts_.address, e.what());
    if (deadline.expired())
      throw OperationTimeoutError(text, {.group = parts_.group, .op = "new_group", .rank = coming});
    throw BackendError(text, {.group = parts_.group, .op = "new_group", .rank = coming});
  }
}

/// Gloo accepts whoever connects first. Therefore, before anything else is sent, both ends of each connection prove
/// that they know a key that only this group's store holds; a process that cannot is not a rank of the group.
void GlooBackend::prove(Deadline deadline) {
  std::array<std::uint8_t, 32> fresh{};
  fill_random(std::as_writable_bytes(std::span(fresh)));
  const auto key = parts_.store->compare_set(
      proof_key, "", std::string_view(reinterpret_cast<const char*>(fresh.data()), fresh.size()), deadline);
  const auto proof = [&](int from, int to) {
    return handshake::proof_under({reinterpret_cast<const std::uint8_t*>(key.data()), key.size()},
                                  fmt::format("cohort gloo {} {}", from, to));
  };
  std::vector<handshake::Proof> mine(index_of(size()));
  std::vector<handshake::Proof> theirs(index_of(size()));
  const auto refuse = [&](int who, const std::string& why) {
    throw BackendError(fmt::format("the process that connected as rank {} {}", who, why),
                       {.group = parts_.group, .op = "new_group", .rank = who});
  };
  try {
    Exchange exchange(*mesh_, slot_of(Use::proof, 0));
    for (int each = 0; each < size(); ++each) {
      if (each == rank()) continue;
      mine[index_of(each)] = proof(rank(), each);
      exchange.send(std::as_bytes(std::span(mine[index_of(each)])), each);
      exchange.recv(std::as_writable_bytes(std::span(theirs[index_of(each)])), each);
    }
    if (!exchange.finish(deadline)) {
      throw OperationTimeoutError("not all ranks completed authentication in time",
                                  {.group = parts_.group, .op = "new_group"});
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    // The peer may have died, which is news that comes a moment later (Joining::run).
    throw NetworkError(fmt::format("a connection broke at once: {}", e.what()),
                       {.group = parts_.group, .op = "new_group"});
  }
  for (int each = 0; each < size(); ++each) {
    if (each != rank() && !handshake::equal(theirs[index_of(each)], proof(each, rank()))) {
      refuse(each, "does not know this group's key: somebody else is on that network");
    }
  }
}

void GlooBackend::abort(std::string_view reason) {
  coordinator_->abort(reason);
}

void GlooBackend::shutdown(Deadline deadline) {
  coordinator_->leave();
  if (has_failed_) return;
  // A short message that was sent must not be lost because its sender leaves.
  try {
    point_to_point_->flush(earlier(deadline, Deadline::after(leaving_timeout)));
  } catch (const std::exception& e) {
    log_debug("group {}: messages to a rank that left were dropped ({})", parts_.group, e.what());
  }
}

Capabilities GlooBackend::capabilities() const {
  return {.operations = Capabilities::bits(
              {OpType::broadcast, OpType::all_reduce, OpType::all_reduce_coalesced, OpType::reduce, OpType::all_gather,
               OpType::all_gather_single, OpType::all_gather_coalesced, OpType::gather, OpType::scatter,
               OpType::reduce_scatter, OpType::all_to_all_single, OpType::all_to_all, OpType::send, OpType::recv,
               OpType::recv_any_source, OpType::barrier, OpType::reduce_scatter_single, OpType::coalesced}),
          .splitting = true,
          .regrouping = true,
          .aborting = true,
          .premul_sum = true};
}

// --- the frame around an operation

template <class Run>
void GlooBackend::guarded(const OpSignature& signature, Call& call, Run&& run) {
  coordinator_->check(call);
  const FailureCoordinator::OpScope scope(*coordinator_, signature, call.sequence());
  const auto deadline = call.deadline();
  try {
    const DeadlineTimer timer(deadline.when(), [mesh = mesh_] { mesh->fail("deadline"); });
    run(signature.digest(call.sequence(), call.whole()), gloo_timeout(deadline));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw_explained(e, call);
  }
}

template <class Fill>
void GlooBackend::exchange_pieces(const OpSignature& signature, Call& call, Fill&& fill) {
  guarded(signature, call, [&](std::uint64_t digest, milliseconds /*timeout*/) {
    Exchange exchange(*mesh_, digest);
    fill(exchange);
    if (!exchange.finish(call.deadline())) coordinator_->miss_deadline(call);
  });
}

void GlooBackend::throw_explained(const std::exception& error, Call& call) {
  // A deadline that has passed makes Gloo's connections fail as well. If it has not passed, a rank that knows the
  // reason may be about to publish it.
  if (call.deadline().expired()) coordinator_->miss_deadline(call);
  coordinator_->check(call);
  for (const auto& each : coordinator_->departures()) {
    if (mesh_->is_broken(each.rank)) coordinator_->fail(each.failure(), call);
  }
  coordinator_->await_news(call);
  for (int each = 0; each < size(); ++each) {
    if (each == rank() || !mesh_->is_broken(each)) continue;
    coordinator_->fail(
        {.kind = ErrorKind::peer_lost,
         .rank = each,
         .text = fmt::format("rank {} closed its connection: it left the group, failed or is gone", each)},
        call);
  }
  coordinator_->fail({.text = error.what()}, call);
}

// --- collectives

namespace {

/// Gloo's own algorithms distinguish operations by 32 bits.
std::uint32_t tag_of(std::uint64_t digest) {
  return static_cast<std::uint32_t>(digest);
}

}  // namespace

void GlooBackend::all_reduce(const Operation& op, Call& call) {
  const Arithmetic arithmetic(op);
  const auto out = op.out();
  const auto count = op.count_of(out);
  if (size() == 1) return arithmetic.alone(op.in().data(), out.data(), count, 1);
  if (count == 0) return barrier(op, call);
  guarded(OpSignature::of(op), call, [&](std::uint64_t digest, milliseconds timeout) {
    const void* in = op.in().data();
    if (arithmetic.has_before()) {
      arithmetic.before(in, out.data(), count);
      in = out.data();
    }
    mesh_->all_reduce(
        {.in = in, .out = out.data(), .count = count, .element_bytes = size_of(op.dtype)},
        [&](void* to, const void* a, const void* b, std::size_t n) { arithmetic.combine(to, a, b, n); }, tag_of(digest),
        timeout);
  });
  if (arithmetic.has_after()) arithmetic.after(out.data(), count, size());
}

void GlooBackend::reduce(const Operation& op, Call& call) {
  const Arithmetic arithmetic(op);
  const auto count = op.count_of(op.in());
  if (size() == 1) return arithmetic.alone(op.in().data(), op.out().data(), count, 1);
  if (count == 0) return barrier(op, call);
  guarded(OpSignature::of(op), call, [&](std::uint64_t digest, milliseconds timeout) {
    // Gloo uses the output as scratch memory on every rank; on ranks other than the root, the caller's memory must stay
    // as it is.
    void* out = op.out().data();
    if (out == nullptr) {
      scratch_.resize(std::max(scratch_.size(), op.in().size()));
      out = scratch_.data();
    }
    const void* in = op.in().data();
    if (arithmetic.has_before()) {
      arithmetic.before(in, out, count);
      in = out;
    }
    mesh_->reduce(
        {.in = in, .out = out, .count = count, .element_bytes = size_of(op.dtype)},
        [&](void* to, const void* a, const void* b, std::size_t n) { arithmetic.combine(to, a, b, n); }, op.root,
        tag_of(digest), timeout);
  });
  if (rank() == op.root && arithmetic.has_after()) arithmetic.after(op.out().data(), count, size());
}

void GlooBackend::broadcast(const Operation& op, Call& call) {
  const auto data = op.out();
  if (size() == 1) return;
  if (data.empty()) return barrier(op, call);
  guarded(OpSignature::of(op), call, [&](std::uint64_t digest, milliseconds timeout) {
    mesh_->broadcast(data.data(), data.size(), op.root, tag_of(digest), timeout);
  });
}

void GlooBackend::all_gather(const Operation& op, Call& call) {
  const auto in = op.in();
  const auto& outs = op.outs;
  const auto own = outs[index_of(rank())];
  if (size() == 1) return copy(in, own);
  // The sizes, which all ranks know, choose the algorithm. Where the pieces lie may differ from rank to rank: a rank
  // whose pieces are not adjacent gathers into memory of its own and copies from there.
  const bool is_even = are_equal_in_size(outs);
  if (is_even && in.empty()) return barrier(op, call);
  const auto signature = OpSignature::of(op);
  if (is_even) {
    return guarded(signature, call, [&](std::uint64_t digest, milliseconds timeout) {
      const bool is_in_order = are_adjacent(outs);
      if (!is_in_order) scratch_.resize(std::max(scratch_.size(), outs.size() * in.size()));
      auto* const to = is_in_order ? outs[0].data() : scratch_.data();
      const bool is_in_place = is_in_order && in.data() == own.data();
      mesh_->all_gather(is_in_place ? nullptr : in.data(), to, in.size(), tag_of(digest), timeout);
      if (is_in_order) return;
      for (std::size_t i = 0; i < outs.size(); ++i) copy({to + i * in.size(), in.size()}, outs[i]);
    });
  }
  exchange_pieces(signature, call, [&](Exchange& exchange) {
    for (int each = 0; each < size(); ++each) {
      if (each == rank()) continue;
      exchange.recv(outs[index_of(each)], each);
      exchange.send(in, each);
    }
    copy(in, own);
  });
}

/// In a part of a hybrid group the pieces of a gather or scatter differ in size: each is matched by its own size.
OpSignature GlooBackend::signature_of_pieces(const Operation& op) const {
  auto signature = OpSignature::of(op);
  if (parts_.is_part) signature.bytes = 0;
  return signature;
}

void GlooBackend::gather(const Operation& op, Call& call) {
  if (size() == 1) return copy(op.in(), op.out());
  exchange_pieces(signature_of_pieces(op), call, [&](Exchange& exchange) {
    if (rank() != op.root) return exchange.send(op.in(), op.root);
    for (int each = 0; each < size(); ++each) {
      const auto out = op.outs[index_of(each)];
      each == op.root ? copy(op.in(), out) : exchange.recv(out, each);
    }
  });
}

void GlooBackend::scatter(const Operation& op, Call& call) {
  if (size() == 1) return copy(op.in(), op.out());
  exchange_pieces(signature_of_pieces(op), call, [&](Exchange& exchange) {
    if (rank() != op.root) return exchange.recv(op.out(), op.root);
    for (int each = 0; each < size(); ++each) {
      const auto in = op.ins[index_of(each)];
      each == op.root ? copy(in, op.out()) : exchange.send(in, each);
    }
  });
}

void GlooBackend::all_to_all(const Operation& op, Call& call) {
  const auto own = index_of(rank());
  if (size() == 1) return copy(op.ins[own], op.outs[own]);
  exchange_pieces(OpSignature::of(op), call, [&](Exchange& exchange) {
    // Each rank begins with its right neighbour, so that not all send to rank 0 first.
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      const int from = (rank() - step + size()) % size();
      exchange.recv(op.outs[index_of(from)], from);
      exchange.send(op.ins[index_of(to)], to);
    }
    copy(op.ins[own], op.outs[own]);
  });
}

void GlooBackend::reduce_scatter(const Operation& op, Call& call) {
  if (size() == 1) {
    return Arithmetic(op).alone(op.in().data(), op.out().data(), op.count_of(op.out()), 1);
  }
  guarded(OpSignature::of(op), call,
          [&](std::uint64_t digest, milliseconds /*timeout*/) { reduce_pieces(op, digest, call); });
}

/// Every rank sends each of the others its piece, and each combines what it received in rank order: this moves as few
/// bytes as any algorithm, takes one step, and gives the same bits as on one host. It works in chunks, so that received
/// data stays in the caches and needs little memory; the next chunk is transferred while one is combined.
void GlooBackend::reduce_pieces(const Operation& op, std::uint64_t digest, Call& call) {
  const std::span<const ConstBytes> ins = op.ins;
  const auto output = op.out();
  constexpr std::size_t chunk_bytes = std::size_t{256} << 10U;
  const auto element = size_of(op.dtype);
  const auto ranks = index_of(size());
  const auto own = index_of(rank());
  const auto chunk = chunk_bytes / element * element;
  std::size_t longest = output.size();
  for (const auto& in : ins) longest = std::max(longest, in.size());
  const auto chunks = (longest + chunk - 1) / chunk;
  const auto width = std::min(chunk, output.size());
  scratch_.resize(std::max(scratch_.size(), 2 * ranks * width));

  const auto part = [&](auto piece, std::size_t number) {
    const auto first = std::min(number * chunk, piece.size());
    return piece.subspan(first, std::min(chunk, piece.size() - first));
  };
  const auto place = [&](std::size_t number, std::size_t from) {
    return Bytes(scratch_).subspan(((number % 2) * ranks + from) * width, part(output, number).size());
  };
  // Every rank may have a factor of its own. It is applied by the kernel that sums, so that the result is rounded once.
  const bool has_factors = op.reduce.kind() == ReduceOp::Kind::premul_sum;
  std::vector<double> factors(ranks, 1.0);
  if (has_factors) factors[own] = op.reduce.factor();
  const auto start = [&](std::size_t number) {
    auto exchange = std::make_unique<Exchange>(*mesh_, digest_of({digest, number}));
    for (std::size_t step = 1; step < ranks; ++step) {
      const auto to = (own + step) % ranks;
      const auto from = (own + ranks - step) % ranks;
      if (has_factors && number == 0) {
        exchange->recv(std::as_writable_bytes(std::span(&factors[from], 1)), static_cast<int>(from));
        exchange->send(std::as_bytes(std::span(&factors[own], 1)), static_cast<int>(to));
      }
      exchange->recv(place(number, from), static_cast<int>(from));
      exchange->send(part(ins[to], number), static_cast<int>(to));
    }
    return exchange;
  };

  const auto kernel = reduce::find_kernel(op.dtype, op.reduce.kind());
  std::vector<const void*> sources(ranks);
  std::unique_ptr<Exchange> next = chunks > 0 ? start(0) : nullptr;
  for (std::size_t number = 0; number < chunks; ++number) {
    const auto current = std::move(next);
    if (number + 1 < chunks) next = start(number + 1);
    if (!current->finish(call.deadline())) coordinator_->miss_deadline(call);
    const auto out = part(output, number);
    for (std::size_t from = 0; from < ranks; ++from) {
      sources[from] =
          from == own ? static_cast<const void*>(part(ins[own], number).data()) : place(number, from).data();
    }
    void* const to = out.data();
    if (!out.empty()) {
      kernel({.data = sources.data(), .factors = factors.data(), .count = ranks}, {.data = &to, .count = 1},
             out.size() / element, size());
    }
  }
}

void GlooBackend::barrier(const Operation& op, Call& call) {
  if (size() == 1) return;
  guarded(OpSignature::of(op), call,
          [&](std::uint64_t digest, milliseconds timeout) { mesh_->barrier(tag_of(digest), timeout); });
}

// --- point-to-point

template <class Start>
auto GlooBackend::started(Call& call, Start&& start) {
  coordinator_->check(call);
  try {
    return start();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw_explained(e, call);
  }
}

std::unique_ptr<PointToPoint::Pending> GlooBackend::pending_recv(const Operation& op, const Call& call) {
  return point_to_point_->start_recv(
      op, [where = coordinator_->context(call), me = rank(), expected = op.out().size(),
           expected_type = message_type(op)](int peer, std::uint64_t sent, std::uint32_t type) mutable {
        where.rank = peer;
        return std::make_exception_ptr(
            MismatchError(describe_wrong_message(peer, sent, type, me, expected, expected_type), where));
      });
}

/// Turns Gloo's errors, which the inner transfer throws, into errors of the backend.
class GuardedTransfer final : public Transfer {
 public:
  using Explain = std::function<void(const std::exception&)>;
  GuardedTransfer(std::unique_ptr<PointToPoint::Pending> inner, Explain explain)
      : inner_(std::move(inner)), explain_(std::move(explain)) {}
  bool advance() override {
    try {
      return inner_->advance();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      explain_(e);
      throw;
    }
  }
  bool has_begun() const override { return inner_->has_begun(); }
  int source() const override { return inner_->source(); }

 private:
  std::unique_ptr<PointToPoint::Pending> inner_;
  Explain explain_;
};

std::unique_ptr<Transfer> GlooBackend::start_send(const Operation& op, Call& call) {
  idle_rounds_ = 0;
  return std::make_unique<GuardedTransfer>(started(call, [&] { return point_to_point_->start_send(op); }),
                                           [this, call](const std::exception& e) mutable { throw_explained(e, call); });
}
std::unique_ptr<Transfer> GlooBackend::start_recv(const Operation& op, Call& call) {
  idle_rounds_ = 0;
  return std::make_unique<GuardedTransfer>(started(call, [&] { return pending_recv(op, call); }),
                                           [this, call](const std::exception& e) mutable { throw_explained(e, call); });
}

void GlooBackend::finish(PointToPoint::Pending& transfer, int peer, Call& call) {
  if (!transfer.finish(call.deadline())) throw transfer_timeout(call, peer, coordinator_->context(call));
}

void GlooBackend::send(const Operation& op, Call& call) {
  started(call, [&] {
    const auto transfer = point_to_point_->start_send(op);
    finish(*transfer, op.peer, call);
    return 0;
  });
}
int GlooBackend::recv(const Operation& op, Call& call) {
  return started(call, [&] {
    const auto transfer = pending_recv(op, call);
    finish(*transfer, op.peer, call);
    return transfer->source();
  });
}

void GlooBackend::rest(Deadline until) {
  // Threads that wait in Gloo notice when something is done; this only checks whether they have.
  const auto rounds = std::min(idle_rounds_.fetch_add(1, std::memory_order_relaxed), 5U);
  const auto pause = std::chrono::microseconds(20U << rounds);
  std::this_thread::sleep_until(std::min(until.when(), Deadline::Clock::now() + pause));
}

// --- subgroups

BackendPtr GlooBackend::split(const BackendSplit& split, Deadline deadline) {
  return partition(std::span(&split, 1), deadline);
}

BackendPtr GlooBackend::partition(std::span<const BackendSplit> divided, Deadline deadline) {
  Call call(OpType::coalesced, index_of(splits_++), deadline);
  const auto own = find_own_part(divided, rank());
  if (size() == 1) return own ? make_part(divided, *own, call) : nullptr;
  BackendPtr part;
  guarded({.op = call.op()}, call, [&](std::uint64_t digest, milliseconds timeout) {
    // All ranks of the parent wait for each other, so that they stay at the same operation of the parent.
    mesh_->barrier(tag_of(digest), timeout);
    if (!own) return;
    try {
      part = make_part(divided, *own, call);
    } catch (const BackendError& e) {
      coordinator_->check(call);  // the failure may be this group's, found while the part was made
      coordinator_->fail(failure_of_part(e, divided[own->index], rank()), call);
    }
  });
  return part;
}

BackendPtr GlooBackend::make_part(std::span<const BackendSplit> divided, const OwnPart& own, Call& call) {
  auto parts = parts_;
  parts.group = divided[own.index].id;
  parts.store =
      std::make_shared<PrefixStore>(fmt::format("split/{}/{}", call.sequence(), own.index), parts_.store->clone());
  parts.rank = own.rank;
  parts.size = static_cast<int>(divided[own.index].ranks.size());
  // Whatever ends this group while the new one is made, such as a lost rank, also ends the making.
  parts.failure_check = [parent = std::weak_ptr(coordinator_),
                         outer = parts_.failure_check]() -> std::optional<Failure> {
    const auto coordinator = parent.lock();
    auto failure = coordinator == nullptr ? std::nullopt : coordinator->failure();
    return failure || !outer ? std::move(failure) : outer();
  };
  return std::make_shared<GlooBackend>(std::move(parts), call.deadline());
}

}  // namespace cohort::gloo
