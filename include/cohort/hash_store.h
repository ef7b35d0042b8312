// SPDX-License-Identifier: BSD-3-Clause
//
// A store inside one process, for ranks that are threads and for tests.
//
//   auto store = std::make_shared<cohort::HashStore>();
//   std::jthread reader([store] { store->get("ready"); });   // waits for the other thread's set()
#pragma once

#include <cohort/store.h>

#include <memory>

namespace cohort {

class COHORT_API HashStore final : public Store, public std::enable_shared_from_this<HashStore> {
 public:
  HashStore();
  ~HashStore() override;

  bool has_extended_api() const override { return true; }
  bool has_queues() const override { return true; }
  /// Returns the same object, because its calls do not wait for one another.
  StorePtr clone() override { return shared_from_this(); }

 private:
  StoreReply execute(const StoreRequest& request, Deadline deadline) override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
