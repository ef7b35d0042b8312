// SPDX-License-Identifier: BSD-3-Clause
//
// The usual communication hooks (comm_hook.h says what a hook is):
//
//   ddp.register_comm_hook(cohort::hooks::bf16_compress(pg));                                // half the bytes
//   ddp.register_comm_hook(cohort::hooks::quantize_per_channel(pg));                         // a quarter
//   ddp.register_comm_hook(cohort::hooks::fp16_compress(cohort::hooks::power_sgd(state)));   // one around another
//   ddp.register_comm_hook(cohort::hooks::make_hook(cohort::BuiltinHook::power_sgd_rank2, pg));
//
// The default of `process_group` is the current group of the thread that makes the hook; if there is none, that is an
// Error that tells how to set one. power_sgd.h and post_local_sgd.h have hooks with a state.
//
// All results except noop's are averages over the ranks, and they are in the bucket's own buffer and precision. Each
// hook starts its collectives before it returns, so that their order is the same on all ranks. Hooks that accept
// complex gradients reduce them as pairs of reals. Sparse gradients are never compressed, and a hook blocks until they
// are summed.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>

#include <cstdint>
#include <string_view>

namespace cohort {

namespace hooks {

/// The same as DistributedDataParallel without a hook.
COHORT_API CommHook all_reduce(ProcessGroupPtr process_group = {});

/// Reduces in half precision: the gradients are cast, divided by the number of ranks (after the cast, so that sums do
/// not overflow), summed, and cast back. In fp16 a gradient above 65504 becomes infinite; bf16 has the range of float
/// and 8 bits of mantissa.
COHORT_API CommHook fp16_compress(ProcessGroupPtr process_group = {});
COHORT_API CommHook bf16_compress(ProcessGroupPtr process_group = {});
/// Passes the bucket to `inner` in half precision and casts its result back. Dividing is up to `inner`.
COHORT_API CommHook fp16_compress(CommHook inner);
COHORT_API CommHook bf16_compress(CommHook inner);

/// Sends nothing: every rank keeps its own gradients, undivided. It shows what communication costs.
COHORT_API CommHook noop();

/// Sends 8 bits for each element. The range of a bucket's values, which always includes 0, is divided into 255 steps,
/// so that an element is off by half a step at most. Each rank has its own steps, so values are gathered and not
/// reduced: each rank receives size() times a quarter of the bucket's bytes, which pays off for few ranks on slow
/// links. NaN and infinity are preserved.
COHORT_API CommHook quantize_per_tensor(ProcessGroupPtr process_group = {});
/// The same with one range for each `bucket_size` elements, which limits the effect of outliers. A size below 1 is a
/// ValueError.
COHORT_API CommHook quantize_per_channel(ProcessGroupPtr process_group = {}, std::int64_t bucket_size = 512);

}  // namespace hooks

/// Hooks that can be chosen by name; they have default options.
enum class BuiltinHook : std::uint8_t {
  all_reduce,
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
/// The hook of this name, in lower or upper case. An unknown name is a ValueError that lists the known ones.
COHORT_API BuiltinHook parse_builtin_hook(std::string_view name);

namespace hooks {

/// Each call creates a new state for hooks that have one.
COHORT_API CommHook make_hook(BuiltinHook which, ProcessGroupPtr process_group = {});

}  // namespace hooks

}  // namespace cohort
