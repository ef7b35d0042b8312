// SPDX-License-Identifier: BSD-3-Clause
#include "torch/compat/wrapper_key.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <memory>
#include <optional>
#include <unordered_map>

namespace cohort {

#if COHORT_TORCH_HAS_FAKE_TENSORS

namespace {

// The dispatcher replaces kernels, but not fallbacks: those it removes for whoever holds the registration, here
// libtorch itself. Its function for that is private, and an explicit instantiation may name what is private
// ([temp.spec.general]). If it is renamed, this does not compile.
template <class Tag, auto Member>
struct Opened {
  friend auto member_of(Tag /*tag*/) { return Member; }
};
struct DeregisterFallback {
  friend auto member_of(DeregisterFallback);
};
template struct Opened<DeregisterFallback, &c10::Dispatcher::deregisterFallback_>;

/// What libtorch has on the key.
struct Libtorchs {
  c10::KernelFunction fallback;
  std::unordered_map<c10::OperatorName, c10::KernelFunction> kernels;  ///< of single operators
};
Libtorchs& libtorchs() {
  static Libtorchs all;
  return all;
}

c10::KernelFunction kernel_of(const c10::OperatorHandle& op) {
  return op.getComputedKernelForDispatchKey(wrapper_key).kernelFunction();
}

/// The dispatcher warns of every kernel that is replaced.
class Silence : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

WrapperFallback::WrapperFallback(const c10::KernelFunction& kernel) {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto& theirs = libtorchs();
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  for (const auto& name : dispatcher.getRegistrationsForDispatchKey(wrapper_key)) {
    theirs.kernels.emplace(name, kernel_of(*dispatcher.findOp(name)));
    registrations_.push_back(dispatcher.registerImpl(name, wrapper_key, kernel, std::nullopt, nullptr, "cohort"));
  }
  // Any operator without a kernel of its own on the key shows the fallback.
  theirs.fallback = kernel_of(dispatcher.findSchemaOrThrow("aten::mm", ""));
  (dispatcher.*member_of(DeregisterFallback{}))(wrapper_key);
  registrations_.push_back(dispatcher.registerFallback(wrapper_key, kernel, "cohort"));
}

WrapperFallback::~WrapperFallback() {
  registrations_.clear();
  // For the rest of the process: libtorch removes it when it ends.
  static_cast<void>(std::make_unique<c10::RegistrationHandleRAII>(
                        c10::Dispatcher::singleton().registerFallback(wrapper_key, libtorchs().fallback, "functorch"))
                        .release());
}

bool run_libtorchs_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!c10::impl::tls_is_dispatch_key_included(wrapper_key)) return false;
  const auto& theirs = libtorchs();
  const auto own = theirs.kernels.find(op.operator_name());
  (own == theirs.kernels.end() ? theirs.fallback : own->second).callBoxed(op, keys, stack);
  return true;
}

#else

WrapperFallback::WrapperFallback(const c10::KernelFunction& kernel) {
  registrations_.push_back(c10::Dispatcher::singleton().registerFallback(wrapper_key, kernel, "cohort"));
}

WrapperFallback::~WrapperFallback() = default;

bool run_libtorchs_kernel(const c10::OperatorHandle& /*op*/, c10::DispatchKeySet /*keys*/,
                          torch::jit::Stack* /*stack*/) {
  return false;
}

#endif

}  // namespace cohort
