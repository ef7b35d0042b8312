// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/Tensor.h>
#include <cohort/torch/hooks.h>

#include "torch/hooks/hook_support.h"

namespace cohort::hooks {

CommHook all_reduce(ProcessGroupPtr group) {
  return NamedHook{"all_reduce", [group = group_for(std::move(group), "all_reduce")](GradBucket& bucket) {
                     return averaged(*group, bucket.buffer());
                   }};
}

CommHook noop() {
  return NamedHook{"noop", [](GradBucket& bucket) { return completed_future(bucket.buffer()); }};
}

}  // namespace cohort::hooks
