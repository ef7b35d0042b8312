// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/Tensor.h>
#include <cohort/torch/hooks.h>

#include "torch/hooks/hook_support.h"

namespace cohort::hooks {

CommHook allreduce(ProcessGroupPtr group) {
  return NamedHook{"allreduce", [group = group_for(std::move(group), "allreduce")](GradBucket& bucket) {
                     return averaged(*group, bucket.buffer());
                   }};
}

CommHook noop() {
  return NamedHook{"noop", [](GradBucket& bucket) { return ready(bucket.buffer()); }};
}

}  // namespace cohort::hooks
