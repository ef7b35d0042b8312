// SPDX-License-Identifier: BSD-3-Clause
//
// A view of another store in which every key starts with a prefix: key "k" is "prefix/k" inside.
//
//   auto mine = std::make_shared<cohort::PrefixStore>("group7", store);
//   mine->set("k", "v");          // store->get("group7/k") == "v"
//
// The timeout is the inner store's, both ways.
#pragma once

#include <cohort/store.h>

#include <string>

namespace cohort {

class COHORT_API PrefixStore final : public Store {
 public:
  /// A null inner store is a ValueError.
  PrefixStore(std::string prefix, StorePtr inner);

  const std::string& prefix() const { return prefix_; }
  const StorePtr& underlying_store() const { return inner_; }
  /// The store below all prefixes.
  StorePtr underlying_non_prefix_store() const;

  bool has_extended_api() const override { return inner_->has_extended_api(); }
  bool has_queues() const override { return inner_->has_queues(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_->set_timeout(timeout); }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }
  StorePtr clone() override;

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

  std::string joined(std::string_view key) const;
  Keys joined(const Keys& keys) const;

  std::string prefix_;
  StorePtr inner_;
};

}  // namespace cohort
