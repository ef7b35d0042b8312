// SPDX-License-Identifier: BSD-3-Clause
//
// The instruction sets the kernels are compiled for, one of which is chosen at run time: the compiler's baseline, SSE4,
// AVX2 and AVX-512 on x86, NEON on Arm. Include before anything of Highway.
#pragma once

// Each set costs compile time. CPUs with SSSE3 and not SSE4 are gone; vectors of SVE have no size at compile time, so
// they cannot be members.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

// Where the baseline has no vectors that Highway knows, arrays of 16 bytes stand in. Highway would not use them with
// GCC before 12.3, which miscompiles the upper half of products (https://gcc.gnu.org/PR106322); we take none.
#define HWY_BROKEN_EMU128 0
