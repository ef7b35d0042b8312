// SPDX-License-Identifier: BSD-3-Clause
#include "reduce/kernels.h"

#include "reduce/families.h"

namespace cohort::reduce {

namespace {

Kernel find(DType dtype, ReduceOp::Kind kind, Stores stores) {
  switch (dtype) {
    case DType::f32:
    case DType::f64:
    case DType::complex64:
    case DType::complex128:
      return find_float_kernel(dtype, kind, stores);
    case DType::f16:
    case DType::bf16:
      return find_half_kernel(dtype, kind, stores);
    case DType::i8:
    case DType::u8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
    case DType::boolean:
    case DType::u16:
    case DType::u32:
    case DType::u64:
      return find_integer_kernel(dtype, kind, stores);
    case DType::raw:
      break;
  }
  return nullptr;
}

}  // namespace

Kernel find_kernel(DType dtype, ReduceOp::Kind kind) {
  return find(dtype, kind, Stores::ordinary);
}

Kernel find_streaming_kernel(DType dtype, ReduceOp::Kind kind) {
  const auto streaming = find(dtype, kind, Stores::streaming);
  return streaming != nullptr ? streaming : find_kernel(dtype, kind);
}

}  // namespace cohort::reduce
