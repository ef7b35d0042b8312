// SPDX-License-Identifier: BSD-3-Clause
//
// f16 and bf16 to floats and back: MPI knows neither, and adding them up two at a time would round at every step where
// Cohort promises to round once. About a nanosecond an element, beside which the network costs more.
#pragma once

#include <cohort/dtype.h>

#include <cstddef>

namespace cohort::mpi {

/// `dtype` is f16 or bf16. Halves need not be aligned.
void widen(DType dtype, const void* halves, float* floats, std::size_t count);
/// To nearest, ties to even.
void narrow(DType dtype, const float* floats, void* halves, std::size_t count);

}  // namespace cohort::mpi
