// SPDX-License-Identifier: BSD-3-Clause
//
// A view of another store in which every key starts with a prefix: key "k" is "prefix/k" in the inner store.
//
//   auto mine = std::make_shared<cohort::PrefixStore>("group7", store);
//   mine->set("k", "v");          // store->get("group7/k") == "v"
//
// The two stores share one timeout: setting it on either sets it on both.
#pragma once

#include <cohort/store.h>

#include <string>

namespace cohort {

class COHORT_API PrefixStore final : public Store {
 public:
  /// Throws ValueError if the inner store is null.
  PrefixStore(std::string prefix, StorePtr inner);

  const std::string& prefix() const { return prefix_; }
  const StorePtr& underlying_store() const { return inner_; }
  /// The first store below that is not a PrefixStore.
  StorePtr underlying_non_prefix_store() const;

  bool has_extended_api() const override { return inner_->has_extended_api(); }
  bool has_queues() const override { return inner_->has_queues(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_->set_timeout(timeout); }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }
  StorePtr clone() override;

 private:
  StoreReply execute(const StoreRequest& request, Deadline deadline) override;

  std::string prefix_;
  StorePtr inner_;
};

}  // namespace cohort
