// SPDX-License-Identifier: BSD-3-Clause
//
// All-reduce, and reduce, which is the same with one receiver.
//
// In every form, a rank combines the values of ranks 0, 1, 2, ... in that order, element by element, so the bits of the
// result do not depend on the form, on the chunks, or on which rank combined them.
//
//   small    every rank posts its data and combines the data of all.        1 line per rank and 32 bytes; one wait
//   direct   rank r combines slice r from the memory of all ranks into the memory of all ranks (reduce-scatter and
//            all-gather in one; Rabenseifner 2004, on shared memory). S read, S written per rank for 2 ranks; two waits
//   read     the same on ordinary memory, for an all-reduce: rank r has the kernel copy slice r of the others, piece by
//            piece, and combines it while it is in its cache; when all slices are done, it copies the others' results.
//            2 (n-1)/n S copied, S read, S/n written per rank, a system call a piece; three waits
//   staged   the same through staging buffers, chunk by chunk: (n-1)/n S copied in, S read, S/n written,
//            (n-1)/n S copied out per rank
//
// Whether ordinary memory is read or staged is measured (auto_tuner.h).
#include <array>
#include <optional>

#include "backends/shm/backend.h"
#include "backends/shm/collectives/collective.h"
#include "backends/shm/collectives/operands.h"
#include "backends/shm/collectives/slices.h"
#include "backends/shm/collectives/stage_slots.h"
#include "backends/shm/collectives/tuned_transfer.h"
#include "backends/shm/collectives/tuning.h"
#include "backends/shm/protocol/pipeline.h"
#include "core/rank_index.h"
#include "reduce/copy.h"
#include "reduce/kernels.h"

namespace cohort::shm {

namespace {

struct Locations {
  std::uint64_t in;
  std::uint64_t out;
};
static_assert(sizeof(Locations) <= post_inline_bytes);

constexpr int all_ranks = -1;

class ShmReduction {
 public:
  ShmReduction(Engine& engine, const Operation& op, Call& call)
      : engine_(engine),
        board_(engine.board()),
        rank_(engine.rank()),
        size_(engine.size()),
        in_(op.in()),
        out_(op.out()),
        count_(op.count_of(in_)),
        factor_(factor_of(op)),
        root_(op.type == OpType::reduce ? op.root : all_ranks),
        is_receiver_(root_ == all_ranks || root_ == rank_),
        element_(size_of(op.dtype)),
        kernel_(reduce::find_kernel_for(op.dtype, op.reduce.kind(), in_.size())),
        collective_(engine, op, call) {}

  void run() {
    if (is_small_reduction(in_.size(), size_, engine_.policy().has_own_cpus())) return small();
    const auto in = engine_.peer_memory().locate(in_.data(), in_.size());
    const auto out = is_receiver_ ? engine_.peer_memory().locate(out_.data(), in_.size()) : nowhere;
    auto* const mine = reinterpret_cast<Locations*>(collective_.payload(sizeof(Locations)));
    const bool is_reachable = in.has_value() && out.has_value();
    mine->in = is_reachable ? *in : reinterpret_cast<std::uint64_t>(in_.data());
    mine->out = is_reachable ? *out : reinterpret_cast<std::uint64_t>(out_.data());
    const auto slice_bytes = in_.size() / index_of(size_);
    TunedTransfer transfer(engine_, collective_, pattern(), slice_bytes, factor_);
    transfer.publish(is_reachable);
    collective_.await_all();
    read_factors();
    if (collective_.all_reachable()) return direct();
    transfer.run(slice_bytes, true, [&](AutoTuner::Way way) {
      way == AutoTuner::Way::read ? read() : staged(way == AutoTuner::Way::staged_in_two_places);
    });
  }

 private:
  void combine(void* const* outputs, std::size_t output_count, std::size_t elements) {
    kernel_({.data = operands_.data.data(), .factors = operands_.factors.data(), .count = index_of(size_)},
            {.data = outputs, .count = output_count}, elements, static_cast<double>(size_));
  }

  void read_factors() {
    if (!factor_) return;
    for (int rank = 0; rank < size_; ++rank) operands_.factors[index_of(rank)] = collective_.detail_of(rank).factor;
  }

  void small() {
    const auto bytes = in_.size();
    reduce::copy(collective_.payload(bytes), in_.data(), bytes);
    collective_.post({.factor = factor_.value_or(1)});
    collective_.await_all();
    if (!is_receiver_) return;
    for (int rank = 0; rank < size_; ++rank) {
      operands_.data[index_of(rank)] = rank == rank_ ? in_.data() : collective_.payload_of(rank, bytes);
    }
    read_factors();
    void* const out = out_.data();
    if (bytes > 0) combine(&out, 1, count_);
  }

  void direct() {
    const Slices slices(count_, element_, size_);
    const auto at = slices.begin(rank_) * element_;
    const auto bytes = in_.size();
    std::array<void*, most_ranks> outputs;
    std::size_t output_count = 0;
    for (int rank = 0; rank < size_; ++rank) {
      const auto theirs = locations_of(rank);
      operands_.data[index_of(rank)] = collective_.find(rank, theirs.in, bytes) + at;
      if (root_ == all_ranks || root_ == rank) {
        outputs[output_count++] = collective_.find(rank, theirs.out, bytes) + at;
      }
    }
    combine(outputs.data(), output_count, slices.size(rank_));
    collective_.meet();
  }

  Locations locations_of(int rank) {
    Locations theirs{};
    std::memcpy(&theirs, collective_.payload_of(rank, sizeof(Locations)), sizeof(theirs));
    return theirs;
  }

  AutoTuner::Pattern pattern() const {
    return root_ == all_ranks ? AutoTuner::Pattern::all_reduce : AutoTuner::Pattern::reduce;
  }

  void read() {
    collective_.need_stage();
    // Nobody else uses this rank's staging areas meanwhile.
    auto* const scratch = board_.stage_in(rank_);
    const Slices slices(count_, element_, size_);
    const auto begin = slices.begin(rank_) * element_;
    const auto end = slices.begin(rank_ + 1) * element_;
    const auto piece = read_piece(size_) / cache_line * cache_line;
    // Each rank starts with the one after it, so that they do not all read the same memory at once.
    for (auto at = begin; at < end; at += piece) {
      const auto bytes = std::min(piece, end - at);
      operands_.data[index_of(rank_)] = in_.data() + at;
      for (int step = 1; step < size_; ++step) {
        const int each = (rank_ + step) % size_;
        operands_.data[index_of(each)] =
            map_or_copy(each, locations_of(each).in, at, bytes, scratch + index_of(step - 1) * piece);
      }
      void* const out = out_.data() + at;
      combine(&out, 1, bytes / element_);
    }
    collective_.meet();
    for (int step = 1; step < size_; ++step) {
      const int each = (rank_ + step) % size_;
      const auto at = slices.begin(each) * element_;
      const auto bytes = slices.size(each) * element_;
      auto* const to = out_.data() + at;
      if (const auto* const from = map_or_copy(each, locations_of(each).out, at, bytes, to); from != to) {
        reduce::copy(to, from, bytes);
      }
    }
    // The results must not change before all ranks have copied them.
    collective_.meet();
  }

  /// Returns where the bytes at `at` behind a location are: mapped here, or copied to `to`.
  const std::byte* map_or_copy(int rank, std::uint64_t location, std::size_t at, std::size_t bytes, std::byte* to) {
    if (bytes == 0) return to;
    if (collective_.is_reachable(rank)) return collective_.find(rank, location, in_.size()) + at;
    collective_.read(rank, location + at, to, bytes);
    return to;
  }

  void staged(bool in_two_places) {
    collective_.need_stage();
    const auto chunk_elements = reduce_chunk(in_.size(), size_) / element_;
    const StageSlots slots(stage_area(size_), chunk_elements * element_, collective_.chunk_base(), in_two_places);
    const auto chunks = static_cast<std::uint32_t>((count_ + chunk_elements - 1) / chunk_elements);
    const auto elements_of = [&](std::uint32_t c) { return std::min(chunk_elements, count_ - c * chunk_elements); };
    const auto offset_of = [&](std::uint32_t c) { return c * chunk_elements * element_; };

    const auto fill = [&](std::uint32_t c) {
      // All slices but this rank's own, which only it will combine.
      const Slices slices(elements_of(c), element_, size_);
      const auto* const from = in_.data() + offset_of(c);
      auto* const to = board_.stage_in(rank_) + slots.offset(c);
      const auto own = slices.begin(rank_) * element_;
      const auto after = slices.begin(rank_ + 1) * element_;
      reduce::copy(to, from, own);
      reduce::copy(to + after, from + after, elements_of(c) * element_ - after);
    };
    const auto combine_own = [&](std::uint32_t c) {
      const Slices slices(elements_of(c), element_, size_);
      const auto at = slices.begin(rank_) * element_;
      for (int rank = 0; rank < size_; ++rank) {
        operands_.data[index_of(rank)] =
            rank == rank_ ? in_.data() + offset_of(c) + at : board_.stage_in(rank) + slots.offset(c) + at;
      }
      std::array<void*, 2> outputs;
      std::size_t count = 0;
      if (is_receiver_) outputs[count++] = out_.data() + offset_of(c) + at;
      if (root_ != rank_) outputs[count++] = board_.stage_out(rank_) + slots.offset(c);
      combine(outputs.data(), count, slices.size(rank_));
    };
    const auto collect = [&](std::uint32_t c, int peer) {
      if (!is_receiver_) return;
      const Slices slices(elements_of(c), element_, size_);
      reduce::copy(out_.data() + offset_of(c) + slices.begin(peer) * element_, board_.stage_out(peer) + slots.offset(c),
                   slices.size(peer) * element_);
    };
    reduce_chunks(board_, rank_, size_, collective_.chunk_base(), chunks, collective_.monitor(), fill, combine_own,
                  collect);
    collective_.chunks_done(chunks);
  }

  Engine& engine_;
  const Board& board_;
  const int rank_;
  const int size_;
  const ConstBytes in_;
  const Bytes out_;
  const std::size_t count_;
  const std::optional<double> factor_;
  const int root_;
  const bool is_receiver_;
  const std::size_t element_;
  const reduce::Kernel kernel_;
  Collective collective_;
  Operands operands_;
};

}  // namespace

void LocalBackend::all_reduce(const Operation& op, Call& call) {
  ShmReduction(engine_, op, call).run();
}

void LocalBackend::reduce(const Operation& op, Call& call) {
  ShmReduction(engine_, op, call).run();
}

}  // namespace cohort::shm
