// SPDX-License-Identifier: BSD-3-Clause
//
// The collectives that move data without changing it: broadcast, all-gather, gather, scatter, all-to-all, barrier.
// They are one algorithm: each rank offers something to one or all, and takes something from some.
//
//   small    what is offered goes with the post; takers copy it out.           one wait for each rank taken from
//   direct   offered from memory of the group: takers copy it from there.      one copy per byte; two waits
//            A broadcast where all memory is of the group is shared work: rank r copies slice r to everybody, so the
//            root's memory is read once, and by all.
//   read     ordinary memory, where ranks may read each other's: takers have the kernel copy it.    the same, and a
//            system call
//   staged   through staging buffers, chunk by chunk, while the next chunk is copied in.       two copies per byte
//
// Whether large ordinary memory is read or staged is found by trying (auto_tuner.h).
// Direct and staged mix: each rank's offer is taken the way it lies.
#include "backends/shm/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/shm/pipeline.h"
#include "backends/shm/slices.h"
#include "backends/shm/tuning.h"
#include "reduce/copy.h"

namespace cohort::shm {

namespace {

void copy_own(Bytes to, ConstBytes from) {
  if (to.data() == from.data()) return;
  bypasses_caches({&to, 1}) ? reduce::stream_copy(to.data(), from.data(), from.size())
                            : reduce::copy(to.data(), from.data(), from.size());
}

/// `takes[r]`: what comes from rank r; nothing is taken where it is empty. `source`: the only rank that offers, where
/// it is not all.
class Exchange {
 public:
  static constexpr int all = -1;

  Exchange(Engine& engine, Collective& collective, std::span<const ConstBytes> offers, std::size_t lanes,
           std::span<const Bytes> takes, int source = all)
      : engine_(engine),
        board_(engine.board()),
        rank_(engine.rank()),
        size_(engine.size()),
        collective_(collective),
        offers_(offers),
        takes_(takes),
        source_(source),
        tables_(engine, collective, lanes) {}

  void run() {
    post();
    move();
  }

  void post() {
    const bool is_reachable = tables_.write(offers_);
    // The first rank says beside its post which way large ordinary memory goes this time.
    if (rank_ == 0) preferred_ = preference();
    collective_.publish(is_reachable, static_cast<double>(preferred_));
    collective_.await_all();
    check_sizes();
  }

  void move() {
    bool any_direct = false;
    std::uint64_t longest_staged = 0;
    for (int rank = 0; rank < size_; ++rank) {
      const auto longest = longest_from(rank);
      if (longest == 0) continue;
      if (collective_.is_reachable(rank)) {
        any_direct = true;
      } else {
        longest_staged = std::max(longest_staged, longest);
      }
    }
    const bool is_trial = rank_ == 0 && longest_staged >= AutoTuner::smallest && !any_direct;
    const auto start = is_trial ? Deadline::Clock::now() : Deadline::Clock::time_point{};
    if (any_direct) take_directly();
    if (longest_staged > 0 && goes_by_reading(longest_staged)) {
      any_direct = true;
      take_by_reading();
    } else if (longest_staged > 0) {
      take_staged(longest_staged);
    }
    // What was offered directly stays as it is until all have taken it.
    if (any_direct) collective_.meet();
    if (is_trial) engine_.trials().took(preferred_, own_longest(), source_ != all, Deadline::Clock::now() - start);
  }

  /// Where `rank` has what it offers to all.
  std::byte* place(int rank) { return collective_.find(rank, tables_.lane(rank, rank).location, offers_[0].size()); }

 private:
  void copy_out(std::byte* to, const std::byte* from, std::size_t bytes) const {
    streams_ ? reduce::stream_copy(to, from, bytes) : reduce::copy(to, from, bytes);
  }
  /// The largest piece this rank knows of before it has seen the others' tables.
  std::size_t own_longest() const {
    std::size_t longest = 0;
    for (const auto& offer : offers_) longest = std::max(longest, offer.size());
    for (const auto& to : takes_) longest = std::max(longest, to.size());
    return longest;
  }
  AutoTuner::Way preference() const {
    const auto longest = own_longest();
    if (!engine_.peer_memory().reads_ordinary() || longest < AutoTuner::smallest) return AutoTuner::Way::staged;
    return engine_.trials().next(longest, source_ != all);
  }
  bool goes_by_reading(std::size_t longest) const {
    if (!engine_.peer_memory().reads_ordinary()) return false;
    if (longest < AutoTuner::smallest) return is_read(longest, source_ != all, size_);
    return collective_.number_of(0) == static_cast<double>(AutoTuner::Way::read);
  }
  std::uint64_t longest_from(int rank) const { return source_ == all || source_ == rank ? tables_.longest(rank) : 0; }
  Bytes take(int rank) const { return takes_.empty() ? Bytes() : takes_[static_cast<std::size_t>(rank)]; }

  void check_sizes() {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_ || takes_.empty()) continue;
      const auto offered = tables_.lane(rank, rank_).bytes;
      if (offered == take(rank).size() || (tables_.lanes() == 1 && take(rank).empty())) continue;
      collective_.mismatch(rank, fmt::format("rank {} sends {} bytes to rank {}, which expects {}", rank, offered,
                                             rank_, take(rank).size()));
    }
  }

  void take_directly() {
    for (int step = 1; step < size_; ++step) {
      const int rank = (rank_ + step) % size_;
      const auto to = take(rank);
      if (to.empty() || !collective_.is_reachable(rank)) continue;
      copy_out(to.data(), collective_.find(rank, tables_.lane(rank, rank_).location, to.size()), to.size());
    }
  }

  void take_by_reading() {
    for (int step = 1; step < size_; ++step) {
      const int rank = (rank_ + step) % size_;
      const auto to = take(rank);
      if (to.empty() || collective_.is_reachable(rank)) continue;
      collective_.read(rank, tables_.lane(rank, rank_).location, to.data(), to.size());
    }
  }

  void take_staged(std::uint64_t longest) {
    const auto chunk = std::min(stage_bytes, exchange_chunk(longest) * tables_.lanes());
    const auto width = lane_width(tables_.lanes(), chunk);
    const auto chunks = static_cast<std::uint32_t>((longest + width - 1) / width);
    const bool fills = !collective_.is_reachable(rank_) && longest_from(rank_) > 0;
    bool drains = false;
    for (int rank = 0; rank < size_; ++rank) {
      drains = drains || (rank != rank_ && !take(rank).empty() && !collective_.is_reachable(rank));
    }
    if (fills) collective_.need_stage();
    const auto part = [&](std::size_t bytes, std::uint32_t c) {
      const auto at = std::min<std::size_t>(bytes, c * width);
      return std::pair(at, std::min(width, bytes - at));
    };
    const auto fill = [&](std::uint32_t c) {
      auto* const to = board_.stage_in(rank_, c);
      for (std::size_t i = 0; i < tables_.lanes(); ++i) {
        if (tables_.lanes() > 1 && static_cast<int>(i) == rank_) continue;
        const auto [at, bytes] = part(offers_[i].size(), c);
        reduce::copy(to + i * width, offers_[i].data() + at, bytes);
      }
    };
    const auto drain = [&](std::uint32_t c, const auto& await_filled) {
      for (int step = 1; step < size_; ++step) {
        const int rank = (rank_ + step) % size_;
        const auto to = take(rank);
        const auto [at, bytes] = part(to.size(), c);
        if (bytes == 0 || collective_.is_reachable(rank)) continue;
        await_filled(rank);
        const auto lane = tables_.lanes() == 1 ? 0 : static_cast<std::size_t>(rank_);
        copy_out(to.data() + at, board_.stage_in(rank, c) + lane * width, bytes);
      }
    };
    exchange_chunks(board_, rank_, size_, collective_.chunk_base(), chunks, fills, drains, collective_.watch(), fill,
                    drain);
    collective_.chunks_done(chunks);
  }

  Engine& engine_;
  const Board& board_;
  const int rank_;
  const int size_;
  Collective& collective_;
  std::span<const ConstBytes> offers_;
  std::span<const Bytes> takes_;
  const int source_;
  LaneTables tables_;
  const bool streams_ = bypasses_caches(takes_);
  AutoTuner::Way preferred_ = AutoTuner::Way::staged;  ///< on the first rank
};

/// A list with one entry for each rank of which only one is set.
class OnlyFrom {
 public:
  OnlyFrom(int size, int rank, Bytes bytes) : size_(size) { all_[static_cast<std::size_t>(rank)] = bytes; }
  std::span<const Bytes> get() const { return {all_.data(), static_cast<std::size_t>(size_)}; }

 private:
  int size_;
  std::array<Bytes, most_ranks> all_{};
};

}  // namespace

void Engine::broadcast(Bytes data, int root, Call& call) {
  Collective collective(*this, {.op = OpType::broadcast, .root = root, .bytes = data.size()}, call);
  if (data.size() <= post_bytes) {
    if (rank_ == root) reduce::copy(collective.payload(data.size()), data.data(), data.size());
    collective.publish();
    if (rank_ == root) return;
    collective.await(root);
    reduce::copy(data.data(), collective.payload_of(root, data.size()), data.size());
    // The root waits for nobody, so its next post may be there already: it travels while the caller does its part.
    collective.prefetch_next(root);
    return;
  }
  // Everybody says where its buffer is: the root's is taken from, the others' may be written to.
  const ConstBytes offer(data);
  const OnlyFrom takes(size_, root, rank_ == root ? Bytes() : data);
  Exchange exchange(*this, collective, {&offer, 1}, 1, takes.get(), root);
  exchange.post();
  if (!is_shared_work(data.size(), size_) || !collective.all_reachable()) return exchange.move();
  const Slices slices(data.size(), 1, size_);
  constexpr std::size_t piece = 64 * kib;  // stays in the cache while it goes to one after another
  for (auto at = slices.begin(rank_); at < slices.begin(rank_ + 1); at += piece) {
    const auto bytes = std::min(piece, slices.begin(rank_ + 1) - at);
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != root) reduce::copy(exchange.place(rank) + at, exchange.place(root) + at, bytes);
    }
  }
  collective.meet();
}

void Engine::all_gather(ConstBytes in, std::span<const Bytes> outs, Call& call) {
  std::size_t total = 0;
  std::size_t longest = 0;
  std::uint32_t sizes = 0;
  for (const auto& out : outs) {
    total += out.size();
    longest = std::max(longest, out.size());
    sizes = sizes * 31 + static_cast<std::uint32_t>(out.size() ^ out.size() >> 32U);
  }
  // All ranks know all sizes; there is no root, so its place in the description tells one list of them from another.
  const int fingerprint = static_cast<int>((sizes ^ sizes >> 14U) & 0x3fffU);
  Collective collective(*this, {.op = OpType::all_gather, .root = fingerprint, .bytes = total}, call);
  copy_own(outs[static_cast<std::size_t>(rank_)], in);
  if (longest <= post_bytes) {
    reduce::copy(collective.payload(in.size()), in.data(), in.size());
    collective.publish(false, static_cast<double>(in.size()));
    collective.await_all();
    for (int rank = 0; rank < size_; ++rank) {
      const auto out = outs[static_cast<std::size_t>(rank)];
      if (rank == rank_) continue;
      if (collective.number_of(rank) != static_cast<double>(out.size())) {
        collective.mismatch(rank, fmt::format("rank {} gives {} bytes where rank {} expects {}", rank,
                                              collective.number_of(rank), rank_, out.size()));
      }
      reduce::copy(out.data(), collective.payload_of(rank, out.size()), out.size());
    }
    return;
  }
  Exchange(*this, collective, {&in, 1}, 1, outs).run();
}

void Engine::gather(ConstBytes in, std::span<const Bytes> outs, int root, Call& call) {
  Collective collective(*this, {.op = OpType::gather, .root = root, .bytes = in.size()}, call);
  if (rank_ == root) copy_own(outs[static_cast<std::size_t>(rank_)], in);
  if (in.size() <= post_bytes) {
    if (rank_ != root) reduce::copy(collective.payload(in.size()), in.data(), in.size());
    collective.publish();
    if (rank_ != root) return;
    collective.await_all();
    for (int rank = 0; rank < size_; ++rank) {
      const auto out = outs[static_cast<std::size_t>(rank)];
      if (rank != rank_) reduce::copy(out.data(), collective.payload_of(rank, out.size()), out.size());
    }
    return;
  }
  const bool offers = rank_ != root;
  Exchange(*this, collective, {&in, offers ? 1U : 0U}, 1, outs).run();
}

void Engine::scatter(std::span<const ConstBytes> ins, Bytes out, int root, Call& call) {
  Collective collective(*this, {.op = OpType::scatter, .root = root, .bytes = out.size()}, call);
  const auto total = out.size() * static_cast<std::size_t>(size_);
  if (rank_ == root) copy_own(out, ins[static_cast<std::size_t>(rank_)]);
  if (total <= post_bytes) {
    if (rank_ == root) {
      auto* to = collective.payload(total);
      for (const auto& in : ins) {
        reduce::copy(to, in.data(), in.size());
        to += in.size();
      }
    }
    collective.publish();
    if (rank_ == root) return;
    collective.await(root);
    reduce::copy(out.data(), collective.payload_of(root, total) + static_cast<std::size_t>(rank_) * out.size(),
                 out.size());
    return;
  }
  const auto lanes = static_cast<std::size_t>(size_);
  if (rank_ == root) {
    Exchange(*this, collective, ins, lanes, {}).run();
  } else {
    Exchange(*this, collective, {}, lanes, OnlyFrom(size_, root, out).get()).run();
  }
}

void Engine::all_to_all(std::span<const ConstBytes> ins, std::span<const Bytes> outs, Call& call) {
  Collective collective(*this, {.op = OpType::all_to_all}, call);
  const auto own = static_cast<std::size_t>(rank_);
  copy_own(outs[own], ins[own]);
  Exchange(*this, collective, ins, static_cast<std::size_t>(size_), outs).run();
}

void Engine::barrier(Call& call) {
  Collective collective(*this, {.op = OpType::barrier}, call);
  collective.publish();
  collective.await_all();
}

}  // namespace cohort::shm
