// SPDX-License-Identifier: BSD-3-Clause
#include "reduce/copy.h"

#include "reduce/instruction_set.h"
#include "reduce/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/copy.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace cohort::reduce::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void stream(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  constexpr std::size_t vector = hn::MaxLanes(hn::ScalableTag<std::uint8_t>());
  if (bytes >= 8 * vector) {
    const auto head = (vector - reinterpret_cast<std::uintptr_t>(to) % vector) % vector;
    copy(to, from, head);
    std::size_t at = head;
    for (; at + 4 * vector <= bytes; at += 4 * vector) {
      const auto a = hn::LoadU(d, from + at);
      const auto b = hn::LoadU(d, from + at + vector);
      const auto c = hn::LoadU(d, from + at + 2 * vector);
      const auto e = hn::LoadU(d, from + at + 3 * vector);
      hn::Stream(a, d, to + at);
      hn::Stream(b, d, to + at + vector);
      hn::Stream(c, d, to + at + 2 * vector);
      hn::Stream(e, d, to + at + 3 * vector);
    }
    hwy::FlushStream();
    to += at;
    from += at;
    bytes -= at;
  }
  copy(to, from, bytes);
}

}  // namespace cohort::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::reduce {

void stream_copy(void* to, const void* from, std::size_t bytes) {
  COHORT_CHOOSE_VERSION(stream)(static_cast<std::uint8_t*>(to), static_cast<const std::uint8_t*>(from), bytes);
}

}  // namespace cohort::reduce
#endif
