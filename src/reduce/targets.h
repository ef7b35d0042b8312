// SPDX-License-Identifier: BSD-3-Clause
//
// The instruction sets that the kernels are compiled for: the compiler's baseline, SSE4, AVX2 and AVX-512 on x86, and
// NEON on Arm. One is chosen at run time. Include this before any header of Highway.
#pragma once

// Each instruction set costs compile time. CPUs with SSSE3 but without SSE4 are no longer in use. The size of SVE
// vectors is not known at compile time, so they cannot be class members.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

// If the baseline has no vectors that Highway supports, arrays of 16 bytes are used instead (EMU128). Highway disables
// this for GCC before 12.3, which miscompiles the upper half of products (https://gcc.gnu.org/PR106322); these kernels
// do not use that.
#define HWY_BROKEN_EMU128 0
