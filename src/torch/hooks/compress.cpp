// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/torch/hooks.h>

#include <fmt/format.h>

#include <string>
#include <utility>

#include "torch/hooks/hook_support.h"

namespace cohort::hooks {

namespace {

CommHook compress_to(at::ScalarType type, std::string name, ProcessGroupPtr given) {
  auto group = group_for(std::move(given), name);
  return NamedHook{std::move(name), [group = std::move(group), type](GradBucket& bucket) {
                     const auto& whole = bucket.buffer();
                     if (is_sparse(whole)) return averaged(*group, whole);
                     const auto halves = as_real(whole).to(type, /*non_blocking=*/false, /*copy=*/true);
                     return averaged(*group, halves).then([whole](const at::Tensor& sum) {
                       as_real(whole).copy_(sum);
                       return whole;
                     });
                   }};
}

CommHook compress_around(at::ScalarType type, const char* name, CommHook inner) {
  if (!inner) throw ValueError(fmt::format("the communication hook {} needs a hook inside, not an empty one", name));
  auto full_name = fmt::format("{}({})", name, hook_name(inner));
  return NamedHook{std::move(full_name), [inner = std::move(inner), type, name](GradBucket& bucket) {
                     // The result goes into the original buffer; the one that the inner hook saw is dropped.
                     auto whole = bucket.buffer();
                     if (is_sparse(whole)) return inner(bucket);
                     expect_floats(whole, name);
                     bucket.set_buffer(whole.to(type));
                     return inner(bucket).then([whole](const at::Tensor& result) {
                       if (result.numel() != whole.numel()) {
                         throw ValueError(fmt::format("the hook inside gave {} elements back for a bucket of {}",
                                                      result.numel(), whole.numel()));
                       }
                       whole.copy_(result.view(whole.sizes()));
                       return whole;
                     });
                   }};
}

}  // namespace

CommHook fp16_compress(ProcessGroupPtr group) {
  return compress_to(at::kHalf, "fp16_compress", std::move(group));
}

CommHook bf16_compress(ProcessGroupPtr group) {
  return compress_to(at::kBFloat16, "bf16_compress", std::move(group));
}

CommHook fp16_compress(CommHook inner) {
  return compress_around(at::kHalf, "fp16_compress", std::move(inner));
}

CommHook bf16_compress(CommHook inner) {
  return compress_around(at::kBFloat16, "bf16_compress", std::move(inner));
}

}  // namespace cohort::hooks
