// SPDX-License-Identifier: BSD-3-Clause
//
// What a step has to give, computed by one rank alone from the seeds: element by element, in rank order, with the
// arithmetic of tests/reduce/reference.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "random_programs/program.h"

namespace cohort::random_programs {

using ByteVector = std::vector<std::uint8_t>;

/// `any`: numbers for which the order of a reduction shows in the last bits, with some infinities, NaN and subnormals.
/// `exact`: numbers whose reductions are exact in any order, for backends that do not promise one.
enum class Values : std::uint8_t { any, exact };

bool is_reduction(Kind kind);

/// What a rank contributes as its piece number `piece`.
ByteVector contents(const Step& step, int rank, std::size_t piece, std::size_t count, Values values);
/// This rank's factor in a premul_sum.
double factor_of(const Step& step, int rank, Values values);

/// The contents of a rank's outputs after the step. For any_source, what the other ranks sent, in rank order.
std::vector<ByteVector> expected(const Step& step, int n, int rank, Values values);

/// The text that a rank contributes to a collective of bytes.
std::string bytes_of(const Step& step, int rank);

/// Where the two differ, in words; empty if they do not. The payloads of NaN are not compared, because they are not
/// promised.
std::string difference(DType dtype, const ByteVector& got, const ByteVector& wanted);

}  // namespace cohort::random_programs
