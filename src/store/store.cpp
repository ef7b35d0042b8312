// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/store.h>

#include <fmt/format.h>

#include <utility>

namespace cohort {

void Store::set(std::string_view key, std::string_view value, Within within) {
  do_set(key, value, deadline(within));
}
std::string Store::get(std::string_view key, Within within) {
  return do_get(key, deadline(within));
}
std::int64_t Store::add(std::string_view key, std::int64_t amount, Within within) {
  return do_add(key, amount, deadline(within));
}
std::string Store::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                               Within within) {
  return do_compare_set(key, expected, desired, deadline(within));
}
void Store::wait(const Keys& keys, Within within) {
  if (!keys.empty()) do_wait(keys, deadline(within));
}
bool Store::check(const Keys& keys, Within within) {
  return keys.empty() || do_check(keys, deadline(within));
}
bool Store::delete_key(std::string_view key, Within within) {
  return do_delete_key(key, deadline(within));
}
std::int64_t Store::num_keys(Within within) {
  return do_num_keys(deadline(within));
}
void Store::append(std::string_view key, std::string_view value, Within within) {
  do_append(key, value, deadline(within));
}
Store::Values Store::multi_get(const Keys& keys, Within within) {
  return keys.empty() ? Values() : do_multi_get(keys, deadline(within));
}
void Store::multi_set(const Keys& keys, const Values& values, Within within) {
  if (keys.size() != values.size()) {
    throw StoreError(fmt::format("multi_set: {} keys but {} values; nothing was set", keys.size(), values.size()));
  }
  if (!keys.empty()) do_multi_set(keys, values, deadline(within));
}
void Store::queue_push(std::string_view key, std::string_view value, Within within) {
  do_queue_push(key, value, deadline(within));
}
std::string Store::queue_pop(std::string_view key, bool block, Within within) {
  return do_queue_pop(key, block, deadline(within));
}
std::int64_t Store::queue_len(std::string_view key, Within within) {
  return do_queue_len(key, deadline(within));
}

void Store::set_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() < 0) throw ValueError(fmt::format("store timeout of {} ms: negative", timeout.count()));
  timeout_.store(timeout, std::memory_order_relaxed);
}
std::chrono::milliseconds Store::timeout() const {
  return timeout_.load(std::memory_order_relaxed);
}

Store::Values Store::do_multi_get(const Keys& keys, Deadline deadline) {
  Values values;
  values.reserve(keys.size());
  for (const auto& key : keys) values.push_back(do_get(key, deadline));
  return values;
}

void Store::do_multi_set(const Keys& keys, const Values& values, Deadline deadline) {
  for (std::size_t i = 0; i < keys.size(); ++i) do_set(keys[i], values[i], deadline);
}

void Store::do_queue_push(std::string_view, std::string_view, Deadline) {
  throw NotSupportedError("this store has no queues: use a TcpStore or a HashStore");
}
std::string Store::do_queue_pop(std::string_view, bool, Deadline) {
  throw NotSupportedError("this store has no queues: use a TcpStore or a HashStore");
}
std::int64_t Store::do_queue_len(std::string_view, Deadline) {
  throw NotSupportedError("this store has no queues: use a TcpStore or a HashStore");
}

}  // namespace cohort
