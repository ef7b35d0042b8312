// SPDX-License-Identifier: BSD-3-Clause
//
// Kernels for integers, which wrap around, and for bool. Signed and unsigned types share an unsigned kernel where both
// give the same bits. Bitwise operations are also independent of the width of the elements.
#include "reduce/instruction_set.h"
#include "reduce/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/kernels_integer.cpp"
#include <hwy/foreach_target.h>

#include <type_traits>

#include "reduce/loop_inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::reduce::HWY_NAMESPACE {

struct WrappingProduct : PlainOp {
  using PlainOp::PlainOp;
  template <class V>
  HWY_INLINE V next(V product, V value, NoFactor) const {
    const hn::DFromV<V> d;
    if constexpr (sizeof(hn::TFromD<decltype(d)>) == 1) {
      // No CPU multiplies vectors of bytes, so even and odd bytes are multiplied separately, as 16-bit numbers.
      const hn::Repartition<std::uint16_t, decltype(d)> wide;
      const auto a = hn::BitCast(wide, product);
      const auto b = hn::BitCast(wide, value);
      const auto even = hn::And(hn::Mul(a, b), hn::Set(wide, 0xFF));
      const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a), hn::ShiftRight<8>(b)));
      return hn::BitCast(d, hn::Or(even, odd));
    } else {
      return hn::Mul(product, value);
    }
  }
};

struct Least : PlainOp {
  using PlainOp::PlainOp;
  template <class V>
  HWY_INLINE V next(V least, V value, NoFactor) const {
    return hn::Min(least, value);
  }
};

struct Greatest : PlainOp {
  using PlainOp::PlainOp;
  template <class V>
  HWY_INLINE V next(V greatest, V value, NoFactor) const {
    return hn::Max(greatest, value);
  }
};

struct BitAnd : PlainOp {
  using PlainOp::PlainOp;
  template <class V>
  HWY_INLINE V next(V bits, V value, NoFactor) const {
    return hn::And(bits, value);
  }
};

struct BitOr : PlainOp {
  using PlainOp::PlainOp;
  template <class V>
  HWY_INLINE V next(V bits, V value, NoFactor) const {
    return hn::Or(bits, value);
  }
};

struct BitXor : PlainOp {
  using PlainOp::PlainOp;
  template <class V>
  HWY_INLINE V next(V bits, V value, NoFactor) const {
    return hn::Xor(bits, value);
  }
};

/// Bools in memory: every byte other than 0 counts as true, and results are 0 or 1.
struct Bools : Plain<std::uint8_t> {
  static HWY_INLINE Value decode(hn::Vec<Bytes> bytes) { return hn::Min(bytes, hn::Set(Bytes(), 1)); }
  static HWY_INLINE Value load(const std::uint8_t* from) { return decode(hn::LoadU(Bytes(), from)); }
};

Kernel find_bool(ReduceOp::Kind kind) {
  switch (kind) {
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::max:
    case ReduceOp::Kind::bor:
      return kernel<Bools, BitOr>;
    case ReduceOp::Kind::product:
    case ReduceOp::Kind::min:
    case ReduceOp::Kind::band:
      return kernel<Bools, BitAnd>;
    case ReduceOp::Kind::bxor:
      return kernel<Bools, BitXor>;
    default:
      return nullptr;
  }
}

template <class T>
Kernel find_number(ReduceOp::Kind kind) {
  using Unsigned = Plain<std::make_unsigned_t<T>>;
  using Bits = Plain<std::uint8_t>;
  switch (kind) {
    case ReduceOp::Kind::sum:
      return kernel<Unsigned, Sum>;
    case ReduceOp::Kind::product:
      return kernel<Unsigned, WrappingProduct>;
    case ReduceOp::Kind::min:
      return kernel<Plain<T>, Least>;
    case ReduceOp::Kind::max:
      return kernel<Plain<T>, Greatest>;
    case ReduceOp::Kind::band:
      return kernel<Bits, BitAnd, Stores::ordinary, sizeof(T)>;
    case ReduceOp::Kind::bor:
      return kernel<Bits, BitOr, Stores::ordinary, sizeof(T)>;
    case ReduceOp::Kind::bxor:
      return kernel<Bits, BitXor, Stores::ordinary, sizeof(T)>;
    default:
      return nullptr;
  }
}

Kernel find_streaming(DType dtype, ReduceOp::Kind kind) {
  if (kind != ReduceOp::Kind::sum) return nullptr;
  if (dtype == DType::i32 || dtype == DType::u32) return kernel<Plain<std::uint32_t>, Sum, Stores::streaming>;
  if (dtype == DType::i64 || dtype == DType::u64) return kernel<Plain<std::uint64_t>, Sum, Stores::streaming>;
  return nullptr;
}

Kernel find_integer(DType dtype, ReduceOp::Kind kind, Stores stores) {
  if (stores == Stores::streaming) return find_streaming(dtype, kind);
  switch (dtype) {
    case DType::i8:
      return find_number<std::int8_t>(kind);
    case DType::u8:
      return find_number<std::uint8_t>(kind);
    case DType::i16:
      return find_number<std::int16_t>(kind);
    case DType::i32:
      return find_number<std::int32_t>(kind);
    case DType::i64:
      return find_number<std::int64_t>(kind);
    case DType::u16:
      return find_number<std::uint16_t>(kind);
    case DType::u32:
      return find_number<std::uint32_t>(kind);
    case DType::u64:
      return find_number<std::uint64_t>(kind);
    case DType::boolean:
      return find_bool(kind);
    default:
      return nullptr;
  }
}

}  // namespace cohort::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::reduce {

Kernel find_integer_kernel(DType dtype, ReduceOp::Kind kind, Stores stores) {
  return COHORT_CHOOSE_VERSION(find_integer)(dtype, kind, stores);
}

}  // namespace cohort::reduce
#endif
