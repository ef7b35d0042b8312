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
    throw ValueError(fmt::format("store collective: the key \"{}\" was used before; each call needs its own", key));
  }
  return std::string(key);
}

std::vector<std::string> StoreCollectives::keys_of_all(const std::string& key) const {
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(world_size_));
  for (int rank = 0; rank < world_size_; ++rank) keys.push_back(fmt::format("{}/{}", key, rank));
  return keys;
}

void StoreCollectives::wait_for_all(const std::string& key, Deadline deadline) {
  // Each rank leaves its own mark (for the error below) and counts; the last to count opens the gate, so that one wait
  // on one key serves all.
  store_->set(fmt::format("{}/{}", key, rank_), "", deadline);
  if (store_->add(key + "/count", 1, deadline) == world_size_) store_->set(key + "/gate", "", deadline);
  try {
    store_->wait({key + "/gate"}, deadline);
  } catch (const StoreTimeoutError&) {
    std::vector<int> missing;
    const auto marks = keys_of_all(key);
    for (int rank = 0; rank < world_size_; ++rank) {
      if (!store_->check({marks[static_cast<std::size_t>(rank)]}, std::chrono::seconds(5))) missing.push_back(rank);
    }
    if (missing.empty()) throw;
    throw StoreTimeoutError(
        fmt::format("\"{}\": {} of {} ranks came; missing: {}", key, world_size_ - static_cast<int>(missing.size()),
                    world_size_, fmt::join(missing, ", ")),
        {.op = "store barrier", .rank = missing.front()});
  }
}

void StoreCollectives::barrier(std::string_view key, Within within, bool block) {
  const auto name = use(key);
  const auto deadline = within.or_after(default_timeout);
  if (block) return wait_for_all(name, deadline);
  store_->set(fmt::format("{}/{}", name, rank_), "", deadline);
  if (store_->add(name + "/count", 1, deadline) == world_size_) store_->set(name + "/gate", "", deadline);
}

std::int64_t StoreCollectives::all_sum(std::string_view key, std::int64_t value, Within within) {
  const auto name = use(key);
  const auto deadline = within.or_after(default_timeout);
  store_->add(name + "/sum", value, deadline);
  wait_for_all(name, deadline);
  return store_->add(name + "/sum", 0, deadline);
}

void StoreCollectives::broadcast_send(std::string_view key, std::string_view value, Within within) {
  store_->set(use(key), value, within.or_after(default_timeout));
}

std::string StoreCollectives::broadcast_recv(std::string_view key, Within within) {
  return store_->get(use(key), within.or_after(default_timeout));
}

void StoreCollectives::gather_send(std::string_view key, std::string_view value, Within within) {
  store_->set(fmt::format("{}/{}", use(key), rank_), value, within.or_after(default_timeout));
}

std::vector<std::string> StoreCollectives::gather_recv(std::string_view key, std::string_view value, Within within) {
  const auto name = use(key);
  const auto deadline = within.or_after(default_timeout);
  store_->set(fmt::format("{}/{}", name, rank_), value, deadline);
  return store_->multi_get(keys_of_all(name), deadline);
}

std::string StoreCollectives::scatter_send(std::string_view key, const std::vector<std::string>& values,
                                           Within within) {
  if (values.size() != static_cast<std::size_t>(world_size_)) {
    throw ValueError(fmt::format("scatter: {} values for {} ranks", values.size(), world_size_));
  }
  store_->multi_set(keys_of_all(use(key)), values, within.or_after(default_timeout));
  return values[static_cast<std::size_t>(rank_)];
}

std::string StoreCollectives::scatter_recv(std::string_view key, Within within) {
  return store_->get(fmt::format("{}/{}", use(key), rank_), within.or_after(default_timeout));
}

std::vector<std::string> StoreCollectives::all_gather(std::string_view key, std::string_view value, Within within) {
  return gather_recv(key, value, within);
}

}  // namespace cohort
