// SPDX-License-Identifier: BSD-3-Clause
//
// The instruction set that the vector kernels use. Highway compiles them for each (targets.h). Its own way to choose
// one (HWY_DYNAMIC_DISPATCH) is not used, because it is in Highway's shared library, whose initialiser calibrates a
// timer for 4 ms in every process that loads it: more than all else that a rank does to start. Only Highway's headers
// are used.
#pragma once

namespace cohort::reduce {

enum class InstructionSet { baseline, sse4, avx2, avx512 };

/// The best one that this CPU and its operating system support.
InstructionSet best_instruction_set() noexcept;
/// The one in use, which is the best one unless a test has set another.
InstructionSet instruction_set() noexcept;
void set_instruction_set_for_test(InstructionSet set) noexcept;

/// A function compiled for several instruction sets; null for those that the compiler's baseline includes.
template <class Function>
struct Versions {
  Function avx512;
  Function avx2;
  Function sse4;
  Function baseline;

  Function chosen() const noexcept {
    const auto set = instruction_set();
    if (set >= InstructionSet::avx512 && avx512 != nullptr) return avx512;
    if (set >= InstructionSet::avx2 && avx2 != nullptr) return avx2;
    if (set >= InstructionSet::sse4 && sse4 != nullptr) return sse4;
    return baseline;
  }
};

/// The version of a function to call. To be used behind <hwy/highway.h>, where HWY_DYNAMIC_DISPATCH would be.
#define COHORT_CHOOSE_VERSION(FUNCTION)                                                                               \
  (::cohort::reduce::Versions<decltype(&HWY_STATIC_DISPATCH(FUNCTION))>{                                              \
      HWY_CHOOSE_AVX3(FUNCTION), HWY_CHOOSE_AVX2(FUNCTION), HWY_CHOOSE_SSE4(FUNCTION), HWY_CHOOSE_FALLBACK(FUNCTION)} \
       .chosen())

}  // namespace cohort::reduce
