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

std::string PrefixStore::joined(std::string_view key) const {
  std::string whole;
  whole.reserve(prefix_.size() + 1 + key.size());
  return whole.append(prefix_).append("/").append(key);
}
Store::Keys PrefixStore::joined(const Keys& keys) const {
  Keys whole;
  whole.reserve(keys.size());
  for (const auto& key : keys) whole.push_back(joined(key));
  return whole;
}

void PrefixStore::do_set(std::string_view key, std::string_view value, Deadline deadline) {
  inner_->do_set(joined(key), value, deadline);
}
std::string PrefixStore::do_get(std::string_view key, Deadline deadline) {
  return inner_->do_get(joined(key), deadline);
}
std::int64_t PrefixStore::do_add(std::string_view key, std::int64_t amount, Deadline deadline) {
  return inner_->do_add(joined(key), amount, deadline);
}
std::string PrefixStore::do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                        Deadline deadline) {
  return inner_->do_compare_set(joined(key), expected, desired, deadline);
}
void PrefixStore::do_wait(const Keys& keys, Deadline deadline) {
  inner_->do_wait(joined(keys), deadline);
}
bool PrefixStore::do_check(const Keys& keys, Deadline deadline) {
  return inner_->do_check(joined(keys), deadline);
}
bool PrefixStore::do_delete_key(std::string_view key, Deadline deadline) {
  return inner_->do_delete_key(joined(key), deadline);
}
std::int64_t PrefixStore::do_num_keys(Deadline deadline) {
  return inner_->do_num_keys(deadline);
}
void PrefixStore::do_append(std::string_view key, std::string_view value, Deadline deadline) {
  inner_->do_append(joined(key), value, deadline);
}
Store::Values PrefixStore::do_multi_get(const Keys& keys, Deadline deadline) {
  return inner_->do_multi_get(joined(keys), deadline);
}
void PrefixStore::do_multi_set(const Keys& keys, const Values& values, Deadline deadline) {
  inner_->do_multi_set(joined(keys), values, deadline);
}
void PrefixStore::do_queue_push(std::string_view key, std::string_view value, Deadline deadline) {
  inner_->do_queue_push(joined(key), value, deadline);
}
std::string PrefixStore::do_queue_pop(std::string_view key, bool block, Deadline deadline) {
  return inner_->do_queue_pop(joined(key), block, deadline);
}
std::int64_t PrefixStore::do_queue_len(std::string_view key, Deadline deadline) {
  return inner_->do_queue_len(joined(key), deadline);
}

}  // namespace cohort
