// SPDX-License-Identifier: BSD-3-Clause
//
// The reductions of backend mpi: what MPI cannot do with the elements is done here, before and after.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/mpi/backend.h"
#include "backends/mpi/half_conversion.h"
#include "backends/mpi/pieces.h"
#include "reduce/kernels.h"

namespace cohort::mpi {

namespace {

using Kind = ReduceOp::Kind;

bool is_aligned(const void* data, std::size_t width) {
  return reinterpret_cast<std::uintptr_t>(data) % width == 0;
}

/// One source, one output: what is left of avg and premul_sum when MPI has done the sum.
void apply(DType dtype, Kind kind, const void* from, void* to, std::size_t count, double factor, double divisor) {
  if (count == 0) return;
  reduce::find_kernel(dtype, kind)({.data = &from, .factors = &factor, .count = 1}, {.data = &to, .count = 1}, count,
                                   divisor);
}

const void* advanced(const void* data, std::size_t bytes) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
}
void* advanced(void* data, std::size_t bytes) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes;
}

}  // namespace

void MpiBackend::reduce_alone(const void* in, const Reduction& reduction) const {
  apply(reduction.dtype, reduction.op.kind(), in, reduction.out, reduction.count, reduction.op.factor(), 1);
}

void MpiBackend::fill(const Reduction& reduction, const MpiReduction& mpi_reduction, const void* from,
                      std::size_t count, void* to) const {
  const bool multiplies = reduction.op.kind() == Kind::premul_sum;
  if (mpi_reduction.is_wide) {
    widen(reduction.dtype, from, static_cast<float*>(to), count);
    if (multiplies) apply(DType::f32, Kind::premul_sum, to, to, count, reduction.op.factor(), 1);
  } else if (multiplies) {
    apply(reduction.dtype, Kind::premul_sum, from, to, count, reduction.op.factor(), 1);
  } else {
    copy_bytes(to, from, count * size_of(reduction.dtype));
  }
}

MpiBackend::Operands MpiBackend::prepare(const Reduction& reduction, const MpiReduction& mpi_reduction) {
  const bool is_fit = !mpi_reduction.is_wide && is_aligned(reduction.in, mpi_reduction.width) &&
                      (reduction.out == nullptr || is_aligned(reduction.out, mpi_reduction.width));
  if (is_fit && reduction.op.kind() != Kind::premul_sum) {
    return {.in = reduction.in == reduction.out ? nullptr : reduction.in, .out = reduction.out};
  }
  if (is_fit && reduction.out != nullptr) {
    fill(reduction, mpi_reduction, reduction.in, reduction.count, reduction.out);
    return {.out = reduction.out};
  }
  void* const ours = scratch_->get(Scratch::Use::in, reduction.count * mpi_reduction.per_value * mpi_reduction.width);
  fill(reduction, mpi_reduction, reduction.in, reduction.count, ours);
  return {.in = reduction.out == nullptr ? ours : nullptr, .out = reduction.out == nullptr ? nullptr : ours};
}

void MpiBackend::finish(const Reduction& reduction, const MpiReduction& mpi_reduction, void* at) const {
  const auto dtype = mpi_reduction.is_wide ? DType::f32 : reduction.dtype;
  if (reduction.op.kind() == Kind::avg) apply(dtype, Kind::avg, at, at, reduction.count, 1, size());
  if (mpi_reduction.is_wide) {
    narrow(reduction.dtype, static_cast<const float*>(at), reduction.out, reduction.count);
  } else {
    copy_bytes(reduction.out, at, reduction.bytes());
  }
}

void MpiBackend::all_reduce(const Reduction& reduction, Call& call) {
  check(call);
  if (size() == 1) return reduce_alone(reduction.in, reduction);
  if (reduction.count == 0) return barrier(call);
  const auto mpi_reduction = mpi_reduction_for(reduction.dtype, reduction.op.kind());
  const auto operands = prepare(reduction, mpi_reduction);
  const auto all = reduction.count * mpi_reduction.per_value;
  for (std::size_t done = 0; done < all; done += largest_count_) {
    const auto count = std::min(all - done, largest_count_);
    const auto at = done * mpi_reduction.width;
    run(call, count * mpi_reduction.width, -1, [&] {
      return library_.all_reduce(advanced(operands.in, at), advanced(operands.out, at), static_cast<int>(count),
                                 mpi_reduction.element, mpi_reduction.op_in(runtime_), communicator_);
    });
  }
  finish(reduction, mpi_reduction, operands.out);
}

void MpiBackend::reduce(const Reduction& reduction, int root, Call& call) {
  check(call);
  if (size() == 1) return reduce_alone(reduction.in, reduction);
  if (reduction.count == 0) return;
  const auto mpi_reduction = mpi_reduction_for(reduction.dtype, reduction.op.kind());
  const auto operands = prepare(reduction, mpi_reduction);
  const auto all = reduction.count * mpi_reduction.per_value;
  for (std::size_t done = 0; done < all; done += largest_count_) {
    const auto count = std::min(all - done, largest_count_);
    const auto at = done * mpi_reduction.width;
    run(call, count * mpi_reduction.width, root, [&] {
      return library_.reduce(advanced(operands.in, at), advanced(operands.out, at), static_cast<int>(count),
                             mpi_reduction.element, mpi_reduction.op_in(runtime_), root, communicator_);
    });
  }
  if (rank() == root) finish(reduction, mpi_reduction, operands.out);
}

void MpiBackend::reduce_scatter(std::span<const ConstBytes> ins, const Reduction& reduction, Call& call) {
  check(call);
  const auto own = place_of(rank());
  if (size() == 1) return reduce_alone(ins[0].data(), reduction);
  const auto total = total_of(ins) / size_of(reduction.dtype);
  if (total == 0) return barrier(call);
  const auto mpi_reduction = mpi_reduction_for(reduction.dtype, reduction.op.kind());
  if (total * mpi_reduction.per_value > largest_count_) {
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
  for (const auto& each : ins) counts.push_back(static_cast<int>(each.size() / mpi_reduction.width));
  if (mpi_reduction.is_wide) {
    for (std::size_t i = 0; i < ins.size(); ++i) counts[i] = static_cast<int>(ins[i].size() / size_of(reduction.dtype));
  }

  // MPI wants the result apart from what goes in.
  const auto* const out = static_cast<const std::byte*>(reduction.out);
  const bool is_apart = std::none_of(ins.begin(), ins.end(), [&](const ConstBytes& each) {
    return each.data() < out + reduction.bytes() && out < each.data() + each.size();
  });
  const auto start = packed_start(ins);
  const void* in = nullptr;
  if (start && is_apart && !mpi_reduction.is_wide && reduction.op.kind() != Kind::premul_sum &&
      is_aligned(*start, mpi_reduction.width)) {
    in = *start;
  } else {
    auto* const ours = scratch_->get(Scratch::Use::in, total * mpi_reduction.per_value * mpi_reduction.width);
    std::size_t at = 0;
    for (const auto& each : ins) {
      const auto count = each.size() / size_of(reduction.dtype);
      if (count > 0) fill(reduction, mpi_reduction, each.data(), count, ours + at);
      at += count * mpi_reduction.per_value * mpi_reduction.width;
    }
    in = ours;
  }
  void* const to = reduction.count == 0 ? somewhere()
                   : mpi_reduction.is_wide || !is_aligned(out, mpi_reduction.width)
                       ? scratch_->get(Scratch::Use::out, place_of(counts[own]) * mpi_reduction.width)
                       : reduction.out;
  run(call, total * size_of(reduction.dtype), -1, [&] {
    return library_.reduce_scatter(in, to, counts, mpi_reduction.element, mpi_reduction.op_in(runtime_), communicator_);
  });
  if (reduction.count > 0) finish(reduction, mpi_reduction, to);
}

}  // namespace cohort::mpi
