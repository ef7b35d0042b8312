// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/store_collectives.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cohort {

StoreCollectives::StoreCollectives(StorePtr store, int rank, int world_size)
    : store_(std::move(store)), rank_(rank), world_size_(world_size) {
  if (store_ == nullptr) throw ValueError("StoreCollectives: the store is null");
  if (rank < 0 || rank >= world_size) {
    throw ValueError(fmt::format("StoreCollectives: rank {} of {}: a rank is from 0 to size - 1", rank, world_size));
  }
}

std::string StoreCollectives::use(std::string_view key) {
  if (!used_.emplace(key).second) {
    throw ValueError(
        fmt::format("store collective: the key \"{}\" was used before; each call needs a key of its own", key));
  }
  return std::string(key);
}

std::string StoreCollectives::key_of_rank(std::string_view key, int rank) const {
  return fmt::format("{}/{}", key, rank);
}

std::vector<std::string> StoreCollectives::keys_of_all(std::string_view key) const {
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(world_size_));
  for (int rank = 0; rank < world_size_; ++rank) keys.push_back(key_of_rank(key, rank));
  return keys;
}

/// Each rank adds to the count, and the last one opens the gate, so that all ranks wait for a single key. Its own key
/// is for the error of wait_for_all(); it comes last, so that it is missing if the last rank died before it opened the
/// gate.
void StoreCollectives::arrive(const std::string& key, Deadline deadline) {
  if (store_->add(key + "/count", 1, deadline) == world_size_) store_->set(key + "/gate", "", deadline);
  store_->set(key_of_rank(key, rank_), "", deadline);
}

void StoreCollectives::wait_for_all(const std::string& key, Deadline deadline) {
  arrive(key, deadline);
  try {
    store_->wait({key + "/gate"}, deadline);
  } catch (const StoreTimeoutError&) {
    std::vector<int> missing;
    for (int rank = 0; rank < world_size_; ++rank) {
      if (!store_->check({key_of_rank(key, rank)}, std::chrono::seconds(5))) missing.push_back(rank);
    }
    if (missing.empty()) throw;
    throw StoreTimeoutError(
        fmt::format("\"{}\": {} of {} ranks arrived; missing: {}", key, world_size_ - static_cast<int>(missing.size()),
                    world_size_, fmt::join(missing, ", ")),
        {.op = "store barrier", .rank = missing.front()});
  }
}

void StoreCollectives::barrier(std::string_view key, Timeout timeout, bool block) {
  const auto name = use(key);
  const auto deadline = timeout.deadline_or(default_timeout);
  block ? wait_for_all(name, deadline) : arrive(name, deadline);
}

std::int64_t StoreCollectives::all_sum(std::string_view key, std::int64_t value, Timeout timeout) {
  const auto name = use(key);
  const auto deadline = timeout.deadline_or(default_timeout);
  store_->add(name + "/sum", value, deadline);
  wait_for_all(name, deadline);
  return store_->add(name + "/sum", 0, deadline);
}

void StoreCollectives::broadcast_send(std::string_view key, std::string_view value, Timeout timeout) {
  store_->set(use(key), value, timeout.deadline_or(default_timeout));
}

std::string StoreCollectives::broadcast_recv(std::string_view key, Timeout timeout) {
  return store_->get(use(key), timeout.deadline_or(default_timeout));
}

void StoreCollectives::gather_send(std::string_view key, std::string_view value, Timeout timeout) {
  store_->set(key_of_rank(use(key), rank_), value, timeout.deadline_or(default_timeout));
}

std::vector<std::string> StoreCollectives::gather_recv(std::string_view key, std::string_view value, Timeout timeout) {
  const auto name = use(key);
  const auto deadline = timeout.deadline_or(default_timeout);
  store_->set(key_of_rank(name, rank_), value, deadline);
  return store_->multi_get(keys_of_all(name), deadline);
}

std::string StoreCollectives::scatter_send(std::string_view key, const std::vector<std::string>& values,
                                           Timeout timeout) {
  if (values.size() != static_cast<std::size_t>(world_size_)) {
    throw ValueError(fmt::format("scatter: {} values for {} ranks", values.size(), world_size_));
  }
  store_->multi_set(keys_of_all(use(key)), values, timeout.deadline_or(default_timeout));
  return values[static_cast<std::size_t>(rank_)];
}

std::string StoreCollectives::scatter_recv(std::string_view key, Timeout timeout) {
  return store_->get(key_of_rank(use(key), rank_), timeout.deadline_or(default_timeout));
}

std::vector<std::string> StoreCollectives::all_gather(std::string_view key, std::string_view value, Timeout timeout) {
  return gather_recv(key, value, timeout);
}

}  // namespace cohort
