// SPDX-License-Identifier: BSD-3-Clause
//
// The library's dispatch key and libtorch's own: neither takes the other's place, in this libtorch or in a later one,
// which will have a fallback on Fake.
#include "torch/compat/wrapper_key.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/dtensor.h>
#include <cohort/torch/functional.h>
#include <cohort/torch/mesh.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "support/expect_error.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK(false, "the fallback on Fake got ", op.operator_name());
}

/// A libtorch that uses Fake itself.
c10::RegistrationHandleRAII use_fake() {
  return c10::Dispatcher::singleton().registerFallback(
      c10::DispatchKey::Fake, c10::KernelFunction::makeFromBoxedFunction<&refuse>(), "the test");
}

/// Training with distributed tensors, results in flight, and a captured step: everything that arrives at the key.
void use_the_key() {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const DeviceMesh mesh = DeviceMesh::from_group(group, "cpu");
    const auto x = torch::arange(8, torch::kDouble).reshape({4, 2});
    const auto sharded = distribute_tensor(x, mesh, {Shard(0)});
    sharded.requires_grad_();
    (sharded * sharded).sum().backward();
    EXPECT_TRUE(DTensor(sharded.grad()).full_tensor().equal(2 * x));
    EXPECT_TRUE(functional::all_reduce(x, "sum", group).mul(1).equal(2 * x));
  });
  auto step = capture([](const at::Tensor& x) {
    const auto w = torch::ones({3}, torch::kDouble).requires_grad_();
    return torch::autograd::grad({(w * x).sum()}, {w})[0];
  });
  for (int i = 1; i < 6; ++i) {
    const auto x = torch::full({3}, i, torch::kDouble);
    EXPECT_TRUE(step(x).equal(x));
  }
  EXPECT_NE(step.explain().find("replayed"), std::string::npos);
}

TEST(WrapperKey, WorksWhateverLibtorchDoesWithFake) {
  std::optional<c10::RegistrationHandleRAII> registered;
  try {
    registered.emplace(use_fake());
    EXPECT_NE(wrapper_key, c10::DispatchKey::Fake) << "two fallbacks on one key";
  } catch (const c10::Error&) {
    // It has one already: ours, or libtorch's own.
  }
  use_the_key();
}

TEST(WrapperKey, ARecordingThatLosesItIsRefused) {
  auto step = capture([](const at::Tensor& x) {
    const auto y = x + 1;
    c10::impl::tls_set_dispatch_key_included(wrapper_key, false);
    return y * 2;
  });
  EXPECT_ERROR(CaptureError, step(torch::ones({2})), "dispatch keys of this thread");
}

}  // namespace
}  // namespace cohort::test
