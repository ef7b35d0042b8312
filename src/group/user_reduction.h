// SPDX-License-Identifier: BSD-3-Clause
//
// Reductions with a function of the program (reduction.h), built from operations that move data, so that they work on
// every backend for host memory and combine the ranks in the same order everywhere.
#pragma once

#include <cohort/backend.h>
#include <cohort/operation.h>

namespace cohort {

/// Whether the backend has what such reductions are built from.
bool has_user_reductions(const Backend& backend);
/// Throws NotSupportedError if it has not.
void check_user_reductions(const Backend& backend, const Operation& op);

/// Performs an all_reduce, reduce or reduce_scatter whose reduction is ReduceOp::Kind::user. Throws MismatchError on
/// all ranks if the ranks pass different reductions, and DistributedError on all ranks if the function threw on one.
void reduce_with_user_function(Backend& backend, const Operation& op, Call& call);

}  // namespace cohort
