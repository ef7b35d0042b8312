// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dispatch/step_observer.h"

#include <memory>

#include "torch/compat/test_slots.h"
#include "torch/dispatch/fallback.h"

namespace cohort {

namespace {

/// How the observer is carried from thread to thread, as ImplicitReplication is.
struct ActiveObserver : c10::DebugInfoBase {
  static auto kind() { return test_slots::step_observer(); }
  explicit ActiveObserver(StepObserver& active) : observer(active) {}
  StepObserver& observer;
};

}  // namespace

StepObserver* StepObserver::active() noexcept {
  if (!c10::impl::tls_is_dispatch_key_included(wrapper_key)) return nullptr;
  const auto* const active = dynamic_cast<ActiveObserver*>(c10::ThreadLocalDebugInfo::get(ActiveObserver::kind()));
  return active == nullptr ? nullptr : &active->observer;
}

ObservedScope::ObservedScope(StepObserver& observer)
    : observer_(ActiveObserver::kind(), std::make_shared<ActiveObserver>(observer)), key_(wrapper_key) {
  require_fallback();
}

void refuse_to_record(CaptureRefusal reason, std::string_view context, std::string_view explanation,
                      std::initializer_list<std::string_view> hints) {
  auto* const observer = StepObserver::active();
  if (observer == nullptr) return;
  observer->refuse({reason, std::string(context), std::string(explanation), {hints.begin(), hints.end()}});
}

}  // namespace cohort
