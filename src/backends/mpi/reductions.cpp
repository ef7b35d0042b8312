// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/reductions.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backends/mpi/backend.h"
#include "backends/mpi/memory.h"
#include "reduce/kernels.h"

namespace cohort::mpi {

using Kind = ReduceOp::Kind;

// --- f16 and bf16

namespace {

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16U);
}

std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

float from_float16(std::uint16_t half) {
  const std::uint32_t magnitude = half & 0x7FFFU;
  const std::uint32_t sign = (half & 0x8000U) << 16U;
  // The biases of the exponents differ by 112; a multiplication is right for subnormal numbers as well. Infinity and
  // NaN keep an exponent of all ones.
  const float scaled = std::bit_cast<float>(magnitude << 13U) * 0x1p112F;
  const std::uint32_t special = magnitude >= 0x7C00U ? 0x7F800000U : 0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {
    // Subnormal as a half: adding 0.5 leaves the number in units of 2^-24, rounded by the addition.
    const auto sum = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3F000000U));
  }
  const std::uint32_t odd = (magnitude >> 13U) & 1U;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13U));
}

template <class Function>
void widen_each(const void* halves, float* floats, std::size_t count, Function function) {
  const auto* from = static_cast<const std::byte*>(halves);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, 2);
    floats[i] = function(bits);
  }
}

template <class Function>
void narrow_each(const float* floats, void* halves, std::size_t count, Function function) {
  auto* to = static_cast<std::byte*>(halves);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t bits = function(floats[i]);
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

}  // namespace

void widen(DType dtype, const void* halves, float* floats, std::size_t count) {
  dtype == DType::f16 ? widen_each(halves, floats, count, from_float16)
                      : widen_each(halves, floats, count, from_bfloat16);
}

void narrow(DType dtype, const float* floats, void* halves, std::size_t count) {
  dtype == DType::f16 ? narrow_each(floats, halves, count, to_float16)
                      : narrow_each(floats, halves, count, to_bfloat16);
}

// --- the choice of the operation: MPI's or Cohort's own

namespace {

template <DType dtype, Kind kind>
void combine_with_kernel(const void* in, void* inout, std::size_t elements) {
  const std::array<const void*, 2> sources{in, inout};
  constexpr std::array<double, 2> factors{1, 1};
  reduce::find_kernel(dtype, kind)({.data = sources.data(), .factors = factors.data(), .count = 2},
                                   {.data = &inout, .count = 1}, elements, 1);
}

Element element_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::complex128:
      return Element::f64;
    case DType::i8:
      return Element::i8;
    case DType::u8:
    case DType::boolean:
    case DType::raw:
      return Element::u8;
    case DType::f16:  // as bits
    case DType::bf16:
    case DType::i16:
    case DType::u16:
      return Element::i16;
    case DType::i32:
    case DType::u32:  // the sums and products of signed numbers have the same bits
      return Element::i32;
    case DType::i64:
    case DType::u64:
      return Element::i64;
    case DType::f32:
    case DType::complex64:
      break;
  }
  return Element::f32;
}

Op op_of(Kind kind) {
  switch (kind) {
    case Kind::product:
      return Op::product;
    case Kind::min:
      return Op::min;
    case Kind::max:
      return Op::max;
    case Kind::band:
      return Op::band;
    case Kind::bor:
      return Op::bor;
    case Kind::bxor:
      return Op::bxor;
    case Kind::sum:
    case Kind::avg:
    case Kind::premul_sum:
    case Kind::user:  // never reaches a backend
      break;
  }
  return Op::sum;
}

struct Own {
  DType dtype;
  Kind kind;
  Combine combine;
};

template <DType dtype, Kind kind>
constexpr Own own() {
  return {dtype, kind, combine_with_kernel<dtype, kind>};
}

/// MPI does not define what NaN does to a minimum, and our booleans may have any bits set. MPI's integers shorter than
/// 32 bits cannot be relied on: the sums of Open MPI 4.1 saturate (op/avx), and the minima of MPICH 4.0 treat
/// unsigned integers of all widths as signed.
constexpr auto own_operations = std::to_array<Own>({
    own<DType::f16, Kind::min>(),         own<DType::f16, Kind::max>(),     own<DType::bf16, Kind::min>(),
    own<DType::bf16, Kind::max>(),        own<DType::f32, Kind::min>(),     own<DType::f32, Kind::max>(),
    own<DType::f64, Kind::min>(),         own<DType::f64, Kind::max>(),     own<DType::i8, Kind::sum>(),
    own<DType::i8, Kind::product>(),      own<DType::i8, Kind::min>(),      own<DType::i8, Kind::max>(),
    own<DType::u8, Kind::sum>(),          own<DType::u8, Kind::product>(),  own<DType::u8, Kind::min>(),
    own<DType::u8, Kind::max>(),          own<DType::i16, Kind::sum>(),     own<DType::i16, Kind::product>(),
    own<DType::i16, Kind::min>(),         own<DType::i16, Kind::max>(),     own<DType::boolean, Kind::sum>(),
    own<DType::boolean, Kind::product>(), own<DType::boolean, Kind::min>(), own<DType::boolean, Kind::max>(),
    own<DType::boolean, Kind::band>(),    own<DType::boolean, Kind::bor>(), own<DType::boolean, Kind::bxor>(),
    own<DType::u16, Kind::sum>(),         own<DType::u16, Kind::product>(), own<DType::u16, Kind::min>(),
    own<DType::u16, Kind::max>(),         own<DType::u32, Kind::min>(),     own<DType::u32, Kind::max>(),
    own<DType::u64, Kind::min>(),         own<DType::u64, Kind::max>(),
});

}  // namespace

MpiReduction mpi_reduction_for(DType dtype, Kind kind) {
  const bool is_complex = dtype == DType::complex64 || dtype == DType::complex128;
  MpiReduction mpi_reduction{.element = element_of(dtype),
                             .width = size_of(dtype) / (is_complex ? 2 : 1),
                             .per_value = is_complex ? 2U : 1U,
                             .op = op_of(kind)};
  for (std::size_t i = 0; i < own_operations.size(); ++i) {
    if (own_operations[i].dtype != dtype || own_operations[i].kind != kind) continue;
    mpi_reduction.combine = own_operations[i].combine;
    mpi_reduction.own_index = i;
    return mpi_reduction;
  }
  if (dtype == DType::f16 || dtype == DType::bf16) {
    mpi_reduction.is_wide = true;
    mpi_reduction.element = Element::f32;
    mpi_reduction.width = sizeof(float);
  }
  return mpi_reduction;
}

// --- the collectives

namespace {

bool is_aligned(const void* data, std::size_t width) {
  return reinterpret_cast<std::uintptr_t>(data) % width == 0;
}

/// One source, one output: the part of avg and premul_sum that remains when MPI does the sum.
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
  // MPI wants MPI_IN_PLACE from all ranks of an all-reduce or from none, and whether this rank's operands are fit or
  // are the same memory is known to it alone. Therefore a rank that gets a result always reduces in place.
  if (is_fit && op.out().data() == nullptr && op.reduce.kind() != Kind::premul_sum) return {.in = op.in().data()};
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
  const auto own = index_of(rank());
  if (size() == 1) return reduce_alone(ins[0], op);
  const auto total = total_of(ins) / size_of(op.dtype);
  if (total == 0) return barrier(op, call);
  const auto mpi_reduction = mpi_reduction_for(op.dtype, op.reduce.kind());
  if (total * mpi_reduction.per_value > largest_count_) {
    for (int root = 0; root < size(); ++root) {
      reduce(Operation::reduce_to(root, ins[index_of(root)], root == rank() ? result : Bytes(), op.dtype, op.reduce),
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

  // MPI needs the result in memory separate from the input.
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
                       ? scratch_->get(Scratch::Use::out, index_of(counts[own]) * mpi_reduction.width)
                       : result.data();
  run(call, total * size_of(op.dtype), -1, [&] {
    return library_.reduce_scatter(in, to, counts, mpi_reduction.element, mpi_reduction.op_in(runtime_), communicator_);
  });
  if (!result.empty()) finish(op, mpi_reduction, to);
}

}  // namespace cohort::mpi
