// SPDX-License-Identifier: BSD-3-Clause
//
// The usual communication hooks (comm_hook.h says what a hook is):
//
//   ddp.register_comm_hook(cohort::hooks::bf16_compress(pg));                                // half the bytes
//   ddp.register_comm_hook(cohort::hooks::quantize_per_channel(pg));                         // a quarter
//   ddp.register_comm_hook(cohort::hooks::fp16_compress(cohort::hooks::power_sgd(state)));   // one around another
//   ddp.register_comm_hook(cohort::hooks::make_hook(cohort::BuiltinHook::power_sgd_rank2, pg));
//
// Where a group may be left out, it is the current group of the thread that makes the hook; none is an Error that says
// how to set one. power_sgd.h and post_local_sgd.h have the hooks with a state.
//
// All results are averages over the ranks (but noop's), and lie in the bucket's own buffer, in its own precision. Each
// hook issues its collectives before it returns, so that their order is the same on all ranks. Complex gradients are
// reduced as pairs of reals, where a hook takes them. Sparse gradients are averaged as they are: no hook compresses
// them, and their sum is waited for.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>

#include <cstdint>
#include <string_view>

namespace cohort {

namespace hooks {

/// What DistributedDataParallel does without a hook.
COHORT_API CommHook allreduce(ProcessGroupPtr group = {});

/// Sends halves: cast, divided by the number of ranks (after the cast, so that sums do not overflow), summed, and cast
/// back. A gradient above 65504 becomes infinite; bf16 has float's range and 8 bits of mantissa.
COHORT_API CommHook fp16_compress(ProcessGroupPtr group = {});
COHORT_API CommHook bf16_compress(ProcessGroupPtr group = {});
/// `inner` gets the bucket in halves, and its result is cast back. It divides; these do not.
COHORT_API CommHook fp16_compress(CommHook inner);
COHORT_API CommHook bf16_compress(CommHook inner);

/// Nothing is sent: every rank keeps its own gradients, undivided. To see what communication costs.
COHORT_API CommHook noop();

/// Sends 8 bits for each element. The range of a bucket's values (with 0 in it) is cut into 255 steps, so an element is
/// off by half a step at most; ranks have steps of their own. Gathered, not reduced: each rank gets size() times the
/// bytes of the bucket / 4, so this pays off for few ranks on slow links. NaN and infinity come out as such.
COHORT_API CommHook quantize_per_tensor(ProcessGroupPtr group = {});
/// The same with a range for each `bucket_size` elements, against outliers. Below 1 is a ValueError.
COHORT_API CommHook quantize_per_channel(ProcessGroupPtr group = {}, std::int64_t bucket_size = 512);

}  // namespace hooks

/// Hooks by name, with the defaults of their options.
enum class BuiltinHook : std::uint8_t {
  allreduce,
  fp16_compress,
  bf16_compress,
  quantize_per_tensor,
  quantize_per_channel,
  power_sgd,
  power_sgd_rank2,
  batched_power_sgd,
  batched_power_sgd_rank2,
  noop,
};

COHORT_API std::string_view to_string(BuiltinHook hook);
/// A name as above, in lower or upper case; else a ValueError that lists them.
COHORT_API BuiltinHook parse_builtin_hook(std::string_view name);

namespace hooks {

/// Each call makes a state of its own for those that have one.
COHORT_API CommHook make_hook(BuiltinHook which, ProcessGroupPtr group = {});

}  // namespace hooks

}  // namespace cohort
