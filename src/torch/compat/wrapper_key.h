// SPDX-License-Identifier: BSD-3-Clause
//
// The dispatch key of the library's own tensors, below autograd and above all kernels. In all of libtorch two keys are
// in that place and can be had: Fake, which nothing used before FakeTensor came to C++, and the key by which functorch
// leaves its transforms, on which libtorch has a fallback and some kernels. These are put aside there, and get back
// every operator that is not ours, so that functorch does what it does without the library.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKey.h>

#include <vector>

#include "torch/compat/features.h"

namespace cohort {

#if COHORT_TORCH_HAS_FAKE_TENSORS
inline constexpr c10::DispatchKey wrapper_key = c10::DispatchKey::FuncTorchDynamicLayerBackMode;
#else
inline constexpr c10::DispatchKey wrapper_key = c10::DispatchKey::Fake;
#endif

/// Makes a kernel the one fallback on the key while it exists. A second fallback on a key is an error of libtorch when
/// a library is loaded, so all roles of the key share one. Not while other threads use libtorch: an object of static
/// storage duration.
class WrapperFallback {
 public:
  explicit WrapperFallback(const c10::KernelFunction& kernel);
  ~WrapperFallback();
  WrapperFallback(const WrapperFallback&) = delete;
  WrapperFallback& operator=(const WrapperFallback&) = delete;

 private:
  std::vector<c10::RegistrationHandleRAII> registrations_;
};

/// For an operator that arrives without a tensor of ours and is not recorded: does what libtorch's own kernel on the
/// key does, or returns false where libtorch has none or is not what put the key into this thread's state.
bool run_libtorchs_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace cohort
