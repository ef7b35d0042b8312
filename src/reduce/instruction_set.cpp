// SPDX-License-Identifier: BSD-3-Clause
#include "reduce/instruction_set.h"

#include <atomic>

#if defined(__x86_64__)
#include <sys/platform/x86.h>
#endif

namespace cohort::reduce {

namespace {

// What the compiler may use for each of Highway's targets: the lists of HWY_TARGET_STR_* in Highway's set_macros-inl.h.
InstructionSet detect() noexcept {
#if defined(__x86_64__)
  const bool has_sse4 = CPU_FEATURE_ACTIVE(SSSE3) && CPU_FEATURE_ACTIVE(SSE4_1) && CPU_FEATURE_ACTIVE(SSE4_2) &&
                        CPU_FEATURE_ACTIVE(PCLMULQDQ) && CPU_FEATURE_ACTIVE(AES);
  const bool has_avx2 = has_sse4 && CPU_FEATURE_ACTIVE(AVX) && CPU_FEATURE_ACTIVE(AVX2) && CPU_FEATURE_ACTIVE(BMI1) &&
                        CPU_FEATURE_ACTIVE(BMI2) && CPU_FEATURE_ACTIVE(FMA) && CPU_FEATURE_ACTIVE(F16C) &&
                        CPU_FEATURE_ACTIVE(LZCNT);
  const bool has_avx512 = has_avx2 && CPU_FEATURE_ACTIVE(AVX512F) && CPU_FEATURE_ACTIVE(AVX512VL) &&
                          CPU_FEATURE_ACTIVE(AVX512DQ) && CPU_FEATURE_ACTIVE(AVX512BW) && CPU_FEATURE_ACTIVE(AVX512CD);
  if (has_avx512) return InstructionSet::avx512;
  if (has_avx2) return InstructionSet::avx2;
  if (has_sse4) return InstructionSet::sse4;
#endif
  return InstructionSet::baseline;
}

std::atomic<InstructionSet>& in_use() noexcept {
  static std::atomic<InstructionSet> set{detect()};
  return set;
}

}  // namespace

InstructionSet best_instruction_set() noexcept {
  return detect();
}

InstructionSet instruction_set() noexcept {
  return in_use().load(std::memory_order_relaxed);
}

void set_instruction_set_for_test(InstructionSet set) noexcept {
  in_use().store(set, std::memory_order_relaxed);
}

}  // namespace cohort::reduce
