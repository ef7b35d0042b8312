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

void MpiBackend::reduce_alone(ConstBytes in, const Operation& op) const {
  apply(op.dtype, op.reduce.kind(), in.data(), op.out().data(), op.count_of(in), op.reduce.factor(), 1);
}

void MpiBackend::fill(const Operation& op, const MpiReduction& mpi_reduction, const void* from, std::size_t count,
                      void* to) const {
  const bool multiplies = op.reduce.kind() == Kind::premul_sum;
  if (mpi_reduction.is_wide) {
    widen(op.dtype, from, static_cast<float*>(to), count);
    if (multiplies) apply(DType::f32, Kind::premul_sum, to, to, count, op.reduce.factor(), 1);
  } else if (multiplies) {
    apply(op.dtype, Kind::premul_sum, from, to, count, op.reduce.factor(), 1);
  } else {
    copy_bytes(to, from, count * size_of(op.dtype));
  }
}

MpiBackend::Operands MpiBackend::prepare(const Operation& op, const MpiReduction& mpi_reduction) {
  const bool is_fit = !mpi_reduction.is_wide && is_aligned(op.in().data(), mpi_reduction.width) &&
                      (op.out().data() == nullptr || is_aligned(op.out().data(), mpi_reduction.width));
  if (is_fit && op.reduce.kind() != Kind::premul_sum) {
    return {.in = op.in().data() == op.out().data() ? nullptr : op.in().data(), .out = op.out().data()};
  }
  if (is_fit && op.out().data() != nullptr) {
    fill(op, mpi_reduction, op.in().data(), op.count_of(op.in()), op.out().data());
    return {.out = op.out().data()};
  }
  void* const ours =
      scratch_->get(Scratch::Use::in, op.count_of(op.in()) * mpi_reduction.per_value * mpi_reduction.width);
  fill(op, mpi_reduction, op.in().data(), op.count_of(op.in()), ours);
  return {.in = op.out().data() == nullptr ? ours : nullptr, .out = op.out().data() == nullptr ? nullptr : ours};
}

void MpiBackend::finish(const Operation& op, const MpiReduction& mpi_reduction, void* at) const {
  const auto dtype = mpi_reduction.is_wide ? DType::f32 : op.dtype;
  if (op.reduce.kind() == Kind::avg) apply(dtype, Kind::avg, at, at, op.count_of(op.out()), 1, size());
  if (mpi_reduction.is_wide) {
    narrow(op.dtype, static_cast<const float*>(at), op.out().data(), op.count_of(op.out()));
  } else {
    copy_bytes(op.out().data(), at, op.out().size());
  }
}

void MpiBackend::all_reduce(const Operation& op, Call& call) {
  check(call);
  if (size() == 1) return reduce_alone(op.in(), op);
  const auto values = op.count_of(op.in());
  if (values == 0) return barrier(op, call);
  const auto mpi_reduction = mpi_reduction_for(op.dtype, op.reduce.kind());
  const auto operands = prepare(op, mpi_reduction);
  const auto all = values * mpi_reduction.per_value;
  for (std::size_t done = 0; done < all; done += largest_count_) {
    const auto count = std::min(all - done, largest_count_);
    const auto at = done * mpi_reduction.width;
    run(call, count * mpi_reduction.width, -1, [&] {
      return library_.all_reduce(advanced(operands.in, at), advanced(operands.out, at), static_cast<int>(count),
                                 mpi_reduction.element, mpi_reduction.op_in(runtime_), communicator_);
    });
  }
  finish(op, mpi_reduction, operands.out);
}

void MpiBackend::reduce(const Operation& op, Call& call) {
  const int root = op.root;
  check(call);
  if (size() == 1) return reduce_alone(op.in(), op);
  const auto values = op.count_of(op.in());
  if (values == 0) return;
  const auto mpi_reduction = mpi_reduction_for(op.dtype, op.reduce.kind());
  const auto operands = prepare(op, mpi_reduction);
  const auto all = values * mpi_reduction.per_value;
  for (std::size_t done = 0; done < all; done += largest_count_) {
    const auto count = std::min(all - done, largest_count_);
    const auto at = done * mpi_reduction.width;
    run(call, count * mpi_reduction.width, root, [&] {
      return library_.reduce(advanced(operands.in, at), advanced(operands.out, at), static_cast<int>(count),
                             mpi_reduction.element, mpi_reduction.op_in(runtime_), root, communicator_);
    });
  }
  if (rank() == root) finish(op, mpi_reduction, operands.out);
}

void MpiBackend::reduce_scatter(const Operation& op, Call& call) {
  const auto& ins = op.ins;
  const auto result = op.out();
  check(call);
  const auto own = place_of(rank());
  if (size() == 1) return reduce_alone(ins[0], op);
  const auto total = total_of(ins) / size_of(op.dtype);
  if (total == 0) return barrier(op, call);
  const auto mpi_reduction = mpi_reduction_for(op.dtype, op.reduce.kind());
  if (total * mpi_reduction.per_value > largest_count_) {
    for (int root = 0; root < size(); ++root) {
      reduce(Operation::reduce_to(root, ins[place_of(root)], root == rank() ? result : Bytes(), op.dtype, op.reduce),
             call);
    }
    return;
  }
  std::vector<int> counts;
  counts.reserve(ins.size());
  for (const auto& each : ins) counts.push_back(static_cast<int>(each.size() / mpi_reduction.width));
  if (mpi_reduction.is_wide) {
    for (std::size_t i = 0; i < ins.size(); ++i) counts[i] = static_cast<int>(ins[i].size() / size_of(op.dtype));
  }

  // MPI wants the result apart from what goes in.
  const auto* const out = result.data();
  const bool is_apart = std::none_of(ins.begin(), ins.end(), [&](const ConstBytes& each) {
    return each.data() < out + result.size() && out < each.data() + each.size();
  });
  const auto start = packed_start(ins);
  const void* in = nullptr;
  if (start && is_apart && !mpi_reduction.is_wide && op.reduce.kind() != Kind::premul_sum &&
      is_aligned(*start, mpi_reduction.width)) {
    in = *start;
  } else {
    auto* const ours = scratch_->get(Scratch::Use::in, total * mpi_reduction.per_value * mpi_reduction.width);
    std::size_t at = 0;
    for (const auto& each : ins) {
      const auto count = each.size() / size_of(op.dtype);
      if (count > 0) fill(op, mpi_reduction, each.data(), count, ours + at);
      at += count * mpi_reduction.per_value * mpi_reduction.width;
    }
    in = ours;
  }
  void* const to = result.empty() ? somewhere()
                   : mpi_reduction.is_wide || !is_aligned(out, mpi_reduction.width)
                       ? scratch_->get(Scratch::Use::out, place_of(counts[own]) * mpi_reduction.width)
                       : result.data();
  run(call, total * size_of(op.dtype), -1, [&] {
    return library_.reduce_scatter(in, to, counts, mpi_reduction.element, mpi_reduction.op_in(runtime_), communicator_);
  });
  if (!result.empty()) finish(op, mpi_reduction, to);
}

}  // namespace cohort::mpi
