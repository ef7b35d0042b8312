// SPDX-License-Identifier: BSD-3-Clause
//
// Reduce-scatter: rank r gets the r-th inputs of all ranks, combined in rank order.
//
//   small    all inputs go with their rank's post; rank r combines the r-th of each.           one wait for each rank
//   direct   every input lies in memory of the group: rank r combines all of them in place.     S read, S/n written
//   read     rank r has the kernel copy the others' parts, piece by piece, and combines them while they are in its
//            cache.                                       (n-1)/n S copied, S read, S/n written; a system call a piece
//   staged   each rank copies the others' parts in, chunk by chunk.         (n-1)/n S copied in, S read, S/n written
//
// Whether ordinary memory is read or staged is measured (auto_tuner.h).
#include <fmt/format.h>

#include <optional>

#include "backends/shm/backend.h"
#include "backends/shm/collectives/exchange.h"
#include "backends/shm/collectives/operands.h"
#include "backends/shm/collectives/stage_slots.h"
#include "backends/shm/collectives/tuned_transfer.h"
#include "backends/shm/collectives/tuning.h"
#include "backends/shm/protocol/pipeline.h"
#include "core/rank_index.h"
#include "reduce/copy.h"
#include "reduce/kernels.h"

namespace cohort::shm {

namespace {

class ReduceScatter {
 public:
  ReduceScatter(Engine& engine, const Operation& op, Call& call)
      : engine_(engine),
        board_(engine.board()),
        rank_(engine.rank()),
        size_(engine.size()),
        lanes_(index_of(size_)),
        ins_(op.ins),
        own_(ins_[index_of(rank_)].data()),
        output_(op.out()),
        element_(size_of(op.dtype)),
        factor_(factor_of(op)),
        kernel_(kernel_for(op, own_)),
        collective_(engine, op, call),
        tables_(engine, collective_, lanes_) {
    for (const auto& in : ins_) total_ += in.size();
  }

  void run() {
    if (total_ <= post_bytes) return small();
    const bool is_reachable = tables_.write(ins_);
    const auto piece_bytes = total_ / lanes_;
    TunedTransfer transfer(engine_, collective_, AutoTuner::Pattern::reduce_scatter, piece_bytes, factor_);
    transfer.publish(is_reachable);
    collective_.await_all();
    read_factors();
    check_sizes();
    if (collective_.all_reachable()) return direct();
    transfer.run(piece_bytes, true, [&](AutoTuner::Way way) {
      way == AutoTuner::Way::read ? read() : staged(way == AutoTuner::Way::staged_in_two_places);
    });
  }

 private:
  /// Large results that do not overwrite an input are written past the caches (tuning.h).
  static reduce::Kernel kernel_for(const Operation& op, const std::byte* own) {
    const Bytes output = op.out();
    if (output.data() != own && bypasses_caches({&output, 1})) {
      return reduce::find_streaming_kernel(op.dtype, op.reduce.kind());
    }
    return reduce::find_kernel_for(op.dtype, op.reduce.kind(), output.size());
  }

  void combine(std::size_t at, std::size_t bytes) {
    if (bytes == 0) return;
    void* const out = output_.data() + at;
    kernel_({.data = operands_.data.data(), .factors = operands_.factors.data(), .count = lanes_},
            {.data = &out, .count = 1}, bytes / element_, static_cast<double>(size_));
  }

  void read_factors() {
    if (!factor_) return;
    for (int each = 0; each < size_; ++each) operands_.factors[index_of(each)] = collective_.detail_of(each).factor;
  }

  /// Every rank knows the sizes of all inputs, which the signature covers.
  void small() {
    auto* to = collective_.payload(total_);
    std::size_t own_at = 0;
    for (std::size_t i = 0; i < lanes_; ++i) {
      if (i < index_of(rank_)) own_at += ins_[i].size();
      reduce::copy(to, ins_[i].data(), ins_[i].size());
      to += ins_[i].size();
    }
    collective_.post({.factor = factor_.value_or(1)});
    collective_.await_all();
    read_factors();
    for (int each = 0; each < size_; ++each) {
      operands_.data[index_of(each)] = collective_.payload_of(each, total_) + own_at;
    }
    combine(0, output_.size());
  }

  void check_sizes() {
    for (int each = 0; each < size_; ++each) {
      for (int to = 0; to < size_; ++to) longest_ = std::max(longest_, tables_.lane(each, to).bytes);
      if (const auto offered = tables_.lane(each, rank_).bytes; offered != output_.size()) {
        collective_.mismatch(each, fmt::format("rank {} gives {} bytes for rank {}, which expects {}", each, offered,
                                               rank_, output_.size()));
      }
    }
  }

  void direct() {
    for (int each = 0; each < size_; ++each) {
      operands_.data[index_of(each)] = collective_.find(each, tables_.lane(each, rank_).location, output_.size());
    }
    combine(0, output_.size());
    collective_.meet();
  }

  void read() {
    collective_.need_stage();
    // Nobody else uses this rank's staging areas meanwhile.
    auto* const scratch = board_.stage_in(rank_);
    const auto piece = lane_width(lanes_, read_piece(size_) * lanes_);
    for (std::size_t at = 0; at < output_.size(); at += piece) {
      const auto bytes = std::min(piece, output_.size() - at);
      operands_.data[index_of(rank_)] = own_ + at;
      // Each rank starts with the one after it, so that they do not all read the same memory at once.
      for (int step = 1; step < size_; ++step) {
        const int each = (rank_ + step) % size_;
        const auto location = tables_.lane(each, rank_).location;
        if (collective_.is_reachable(each)) {
          operands_.data[index_of(each)] = collective_.find(each, location, output_.size()) + at;
          continue;
        }
        auto* const to = scratch + index_of(step - 1) * piece;
        collective_.read(each, location + at, to, bytes);
        operands_.data[index_of(each)] = to;
      }
      combine(at, bytes);
    }
    collective_.meet();
  }

  void staged(bool in_two_places) {
    collective_.need_stage();
    const auto width = lane_width(lanes_, reduce_chunk(longest_ * lanes_, size_));
    const StageSlots slots(stage_area(size_), width * lanes_, collective_.chunk_base(), in_two_places);
    const auto chunks = static_cast<std::uint32_t>((longest_ + width - 1) / width);
    const auto part = [&](std::size_t bytes, std::uint32_t c) {
      const auto at = std::min<std::size_t>(bytes, c * width);
      return std::pair(at, std::min(width, bytes - at));
    };
    const auto fill = [&](std::uint32_t c) {
      auto* const to = board_.stage_in(rank_) + slots.offset(c);
      for (std::size_t i = 0; i < lanes_; ++i) {
        if (static_cast<int>(i) == rank_) continue;
        const auto [at, bytes] = part(ins_[i].size(), c);
        reduce::copy(to + i * width, ins_[i].data() + at, bytes);
      }
    };
    const auto drain = [&](std::uint32_t c, const auto& await_filled) {
      const auto [at, bytes] = part(output_.size(), c);
      for (int each = 0; each < size_; ++each) {
        if (each == rank_) {
          operands_.data[index_of(each)] = own_ + at;
          continue;
        }
        await_filled(each);
        operands_.data[index_of(each)] = board_.stage_in(each) + slots.offset(c) + index_of(rank_) * width;
      }
      combine(at, bytes);
    };
    exchange_chunks(board_, rank_, size_, collective_.chunk_base(), chunks, true, true, collective_.monitor(), fill,
                    drain);
    collective_.chunks_done(chunks);
  }

  Engine& engine_;
  const Board& board_;
  const int rank_;
  const int size_;
  const std::size_t lanes_;
  const std::span<const ConstBytes> ins_;
  const std::byte* const own_;
  const Bytes output_;
  const std::size_t element_;
  const std::optional<double> factor_;
  const reduce::Kernel kernel_;
  Collective collective_;
  LaneTables tables_;
  std::size_t total_ = 0;
  std::uint64_t longest_ = 0;
  Operands operands_;
};

}  // namespace

void LocalBackend::reduce_scatter(const Operation& op, Call& call) {
  ReduceScatter(engine_, op, call).run();
}

}  // namespace cohort::shm
