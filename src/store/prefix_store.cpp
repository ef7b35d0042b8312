// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/prefix_store.h>

#include <utility>

namespace cohort {

PrefixStore::PrefixStore(std::string prefix, StorePtr inner) : prefix_(std::move(prefix)), inner_(std::move(inner)) {
  if (inner_ == nullptr) throw ValueError("PrefixStore: the inner store is null");
}

StorePtr PrefixStore::underlying_non_prefix_store() const {
  StorePtr store = inner_;
  while (const auto* const prefixed = dynamic_cast<const PrefixStore*>(store.get())) store = prefixed->inner_;
  return store;
}

StorePtr PrefixStore::clone() {
  return std::make_shared<PrefixStore>(prefix_, inner_->clone());
}

StoreReply PrefixStore::execute(const StoreRequest& request, Deadline deadline) {
  Keys keys;
  keys.reserve(request.keys.size());
  for (const auto key : request.keys) {
    auto& whole = keys.emplace_back();
    whole.reserve(prefix_.size() + 1 + key.size());
    whole.append(prefix_).append("/").append(key);
  }
  auto prefixed = request;
  prefixed.keys.assign(keys.begin(), keys.end());
  return execute_on(*inner_, prefixed, deadline);
}

}  // namespace cohort
