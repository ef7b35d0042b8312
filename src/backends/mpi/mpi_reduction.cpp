// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/mpi_reduction.h"

#include <array>

#include "reduce/kernels.h"

namespace cohort::mpi {

namespace {

using Kind = ReduceOp::Kind;

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
      return Element::u8;
    case DType::f16:  // as bits
    case DType::bf16:
    case DType::i16:
      return Element::i16;
    case DType::i32:
      return Element::i32;
    case DType::i64:
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

/// MPI does not say what NaN does to its minimum, and bools of ours may be any bits. Its integers shorter than 32 bits
/// cannot be relied on: the sums of Open MPI 4.1 saturate (op/avx), the minima of MPICH 4.0 take u8 for signed.
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

}  // namespace cohort::mpi
