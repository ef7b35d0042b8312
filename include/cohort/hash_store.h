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
  /// The same object: its calls do not queue behind one another.
  StorePtr clone() override { return shared_from_this(); }

 private:
  void do_set(std::string_view key, std::string_view value, Deadline deadline) override;
  std::string do_get(std::string_view key, Deadline deadline) override;
  std::int64_t do_add(std::string_view key, std::int64_t amount, Deadline deadline) override;
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             Deadline deadline) override;
  void do_wait(const Keys& keys, Deadline deadline) override;
  bool do_check(const Keys& keys, Deadline deadline) override;
  bool do_delete_key(std::string_view key, Deadline deadline) override;
  std::int64_t do_num_keys(Deadline deadline) override;
  void do_append(std::string_view key, std::string_view value, Deadline deadline) override;
  Values do_multi_get(const Keys& keys, Deadline deadline) override;
  void do_multi_set(const Keys& keys, const Values& values, Deadline deadline) override;
  void do_queue_push(std::string_view key, std::string_view value, Deadline deadline) override;
  std::string do_queue_pop(std::string_view key, bool block, Deadline deadline) override;
  std::int64_t do_queue_len(std::string_view key, Deadline deadline) override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
