// SPDX-License-Identifier: BSD-3-Clause
//
// The loop that all kernels share, compiled once per instruction set. It is a template over
//
//   a Format: how elements are represented in memory and in registers
//     element          bytes per element
//     decode, encode   convert a vector of bytes to the values that are reduced, and back
//     load, store      the same from and to memory
//     joined           joins the result of encode into one vector, if it consists of parts
//   an Op: how values are reduced; constructed with the divisor
//     factor(p, k)     the factor of source k, for ops that have factors
//     first, next      start with the first source, and add each further one
//     last             finishes the result before it is stored
#if defined(COHORT_REDUCE_LOOP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef COHORT_REDUCE_LOOP_INL_H
#undef COHORT_REDUCE_LOOP_INL_H
#else
#define COHORT_REDUCE_LOOP_INL_H
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reduce/families.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::reduce::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Bytes = hn::ScalableTag<std::uint8_t>;

/// For formats whose encode() returns a whole vector.
struct WholeVectors {
  static HWY_INLINE hn::Vec<Bytes> joined(hn::Vec<Bytes> bytes) { return bytes; }
  static HWY_INLINE void store(hn::Vec<Bytes> bytes, std::uint8_t* to) { hn::StoreU(bytes, Bytes(), to); }
};

/// Elements that need no conversion.
template <class T>
struct Plain : WholeVectors {
  using Tag = hn::ScalableTag<T>;
  using Value = hn::Vec<Tag>;
  static constexpr std::size_t element = sizeof(T);

  static HWY_INLINE Value decode(hn::Vec<Bytes> bytes) { return hn::BitCast(Tag(), bytes); }
  static HWY_INLINE hn::Vec<Bytes> encode(Value value) { return hn::BitCast(Bytes(), value); }
  static HWY_INLINE Value load(const std::uint8_t* from) { return decode(hn::LoadU(Bytes(), from)); }
};

/// For ops without factors.
struct NoFactor {};

/// Everything but next(), as most ops have it.
struct PlainOp {
  explicit PlainOp(double /*divisor*/) {}
  HWY_INLINE NoFactor factor(const double* /*factors*/, std::size_t /*source*/) const { return {}; }
  template <class V>
  HWY_INLINE V first(V value, NoFactor) const {
    return value;
  }
  template <class V>
  HWY_INLINE V last(V value) const {
    return value;
  }
};

struct Sum : PlainOp {
  using PlainOp::PlainOp;
  template <class V>
  HWY_INLINE V next(V sum, V value, NoFactor) const {
    return hn::Add(sum, value);
  }
};

/// Loads less than a vector. Only some instruction sets can mask memory that is not mapped.
HWY_INLINE hn::Vec<Bytes> load_part(const std::uint8_t* from, std::size_t bytes) {
  const Bytes d;
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN std::array<std::uint8_t, hn::MaxLanes(Bytes())> whole{};
  std::memcpy(whole.data(), from, bytes);
  return hn::Load(d, whole.data());
#else
  return hn::MaskedLoad(hn::FirstN(d, bytes), d, from);
#endif
}

HWY_INLINE void store_part(hn::Vec<Bytes> vector, std::uint8_t* to, std::size_t bytes) {
  const Bytes d;
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN std::array<std::uint8_t, hn::MaxLanes(Bytes())> whole;
  hn::Store(vector, d, whole.data());
  std::memcpy(to, whole.data(), bytes);
#else
  hn::BlendedStore(vector, hn::FirstN(d, bytes), d, to);
#endif
}

template <class Format, class Op>
class Loop {
 public:
  Loop(const Sources& sources, const Outputs& outputs, double divisor)
      : sources_(sources), outputs_(outputs), op_(divisor) {}

  /// Reduces all `bytes`.
  template <Stores stores>
  HWY_INLINE void run(std::size_t bytes) const {
    std::size_t at = 0;
    if (bytes >= align_from) {
      // Aligned first, because stores that cross cache lines cost twice as much.
      const auto head = bytes_to_aligned_output();
      if (head != 0) part(0, head);
      at = head;
    }
    if (stores == Stores::streaming && outputs_are_aligned(at)) {
      at = whole_vectors<Stores::streaming>(at, bytes);
      hwy::FlushStream();
    } else {
      at = whole_vectors<Stores::ordinary>(at, bytes);
    }
    if (at < bytes) part(at, bytes - at);
  }

 private:
  using Encoded = decltype(Format::encode(Format::load(nullptr)));
  static constexpr std::size_t vector = hn::MaxLanes(Bytes());
  static constexpr std::size_t align_from = 16 * vector;

  const std::uint8_t* source(std::size_t i) const { return static_cast<const std::uint8_t*>(sources_.data[i]); }
  std::uint8_t* output(std::size_t i) const { return static_cast<std::uint8_t*>(outputs_.data[i]); }

  /// The bytes before the first aligned address in the first output; 0 if that is not a whole number of elements.
  std::size_t bytes_to_aligned_output() const {
    if (outputs_.count == 0) return 0;
    const auto gap = (vector - reinterpret_cast<std::uintptr_t>(output(0)) % vector) % vector;
    return gap % Format::element == 0 ? gap : 0;
  }

  bool outputs_are_aligned(std::size_t at) const {
    for (std::size_t i = 0; i < outputs_.count; ++i) {
      if (reinterpret_cast<std::uintptr_t>(output(i) + at) % vector != 0) return false;
    }
    return true;
  }

  template <Stores stores>
  static HWY_INLINE void put(Encoded encoded, std::uint8_t* to) {
    if constexpr (stores == Stores::streaming) {
      hn::Stream(Format::joined(encoded), Bytes(), to);
    } else {
      Format::store(encoded, to);
    }
  }

  /// Processes four vectors at a time, which hides the latency of the op and shares the cost of the loop over the
  /// sources. Not with arrays in place of vectors (EMU128), which have no latency to hide and take minutes to compile.
  template <Stores stores>
  HWY_INLINE std::size_t whole_vectors(std::size_t at, std::size_t bytes) const {
    if constexpr (HWY_TARGET != HWY_EMU128) {
      for (; at + 4 * vector <= bytes; at += 4 * vector) four_vectors<stores>(at);
    }
    for (; at + vector <= bytes; at += vector) one_vector<stores>(at);
    return at;
  }

  template <Stores stores>
  HWY_INLINE void four_vectors(std::size_t at) const {
    const auto* from = source(0) + at;
    auto factor = op_.factor(sources_.factors, 0);
    auto a = op_.first(Format::load(from), factor);
    auto b = op_.first(Format::load(from + vector), factor);
    auto c = op_.first(Format::load(from + 2 * vector), factor);
    auto d = op_.first(Format::load(from + 3 * vector), factor);
    for (std::size_t i = 1; i < sources_.count; ++i) {
      from = source(i) + at;
      factor = op_.factor(sources_.factors, i);
      a = op_.next(a, Format::load(from), factor);
      b = op_.next(b, Format::load(from + vector), factor);
      c = op_.next(c, Format::load(from + 2 * vector), factor);
      d = op_.next(d, Format::load(from + 3 * vector), factor);
    }
    const auto a_bytes = Format::encode(op_.last(a));
    const auto b_bytes = Format::encode(op_.last(b));
    const auto c_bytes = Format::encode(op_.last(c));
    const auto d_bytes = Format::encode(op_.last(d));
    for (std::size_t i = 0; i < outputs_.count; ++i) {
      auto* const to = output(i) + at;
      put<stores>(a_bytes, to);
      put<stores>(b_bytes, to + vector);
      put<stores>(c_bytes, to + 2 * vector);
      put<stores>(d_bytes, to + 3 * vector);
    }
  }

  template <Stores stores>
  HWY_INLINE void one_vector(std::size_t at) const {
    auto value = op_.first(Format::load(source(0) + at), op_.factor(sources_.factors, 0));
    for (std::size_t i = 1; i < sources_.count; ++i)
      value = op_.next(value, Format::load(source(i) + at), op_.factor(sources_.factors, i));
    const auto result = Format::encode(op_.last(value));
    for (std::size_t i = 0; i < outputs_.count; ++i) put<stores>(result, output(i) + at);
  }

  HWY_INLINE void part(std::size_t at, std::size_t bytes) const {
    auto value = op_.first(Format::decode(load_part(source(0) + at, bytes)), op_.factor(sources_.factors, 0));
    for (std::size_t i = 1; i < sources_.count; ++i)
      value = op_.next(value, Format::decode(load_part(source(i) + at, bytes)), op_.factor(sources_.factors, i));
    const auto result = Format::joined(Format::encode(op_.last(value)));
    for (std::size_t i = 0; i < outputs_.count; ++i) store_part(result, output(i) + at, bytes);
  }

  const Sources sources_;
  const Outputs outputs_;
  const Op op_;
};

template <class Format, class Op, Stores stores>
HWY_NOINLINE void reduce_bytes(const Sources& sources, const Outputs& outputs, std::size_t bytes, double divisor) {
  Loop<Format, Op>(sources, outputs, divisor).template run<stores>(bytes);
}

/// A Kernel. `element` is the size of the elements that callers count. It differs from the format's for complex numbers
/// and bitwise operations.
template <class Format, class Op, Stores stores = Stores::ordinary, std::size_t element = Format::element>
void kernel(const Sources& sources, const Outputs& outputs, std::size_t elements, double divisor) {
  reduce_bytes<Format, Op, stores>(sources, outputs, elements * element, divisor);
}

}  // namespace cohort::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
