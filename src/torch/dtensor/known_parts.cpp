// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/known_parts.h"

#include <c10/util/DimVector.h>

#include <mutex>
#include <unordered_map>

#include "core/immortal.h"
#include "torch/dtensor/impl.h"

namespace cohort::dtensor {

namespace {

struct Whole {
  LayoutPtr layout{};  ///< null: there is none
  c10::DimVector sizes{};
};

/// By the TensorImpl, which the KnownPart keeps alive.
struct KnownParts {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Whole> wholes;
};

KnownParts& known_parts() {
  static Immortal<KnownParts> parts;
  return *parts;
}

Whole find_whole(const at::Tensor& part) {
  auto& all = known_parts();
  const std::lock_guard lock(all.mutex);
  const auto found = all.wholes.find(part.unsafeGetTensorImpl());
  return found == all.wholes.end() ? Whole() : found->second;
}

}  // namespace

KnownPart::KnownPart(const at::Tensor& local, const at::Tensor& distributed) : local_(local) {
  auto& all = known_parts();
  const std::lock_guard lock(all.mutex);
  all.wholes[local_.unsafeGetTensorImpl()] = {find_impl(distributed)->layout(), c10::DimVector(distributed.sizes())};
}

KnownPart::~KnownPart() {
  if (!local_.defined()) return;
  auto& all = known_parts();
  const std::lock_guard lock(all.mutex);
  all.wholes.erase(local_.unsafeGetTensorImpl());
}

LayoutPtr layout_of(const at::Tensor& tensor) {
  if (const auto* const distributed = find_impl(tensor)) return distributed->layout();
  return find_whole(tensor).layout;
}

at::Tensor whole_of(const at::Tensor& tensor, const at::Tensor& known) {
  auto whole = find_whole(known);
  if (whole.layout == nullptr || tensor.sizes() != known.sizes()) return tensor;
  return wrap(tensor.detach(), std::move(whole.layout), whole.sizes);
}

}  // namespace cohort::dtensor
