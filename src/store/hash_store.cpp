// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/hash_store.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <condition_variable>
#include <mutex>

#include "store/table.h"
#include "store/wait_error.h"

namespace cohort {

struct HashStore::State {
  std::mutex mutex;
  Table table;

  /// One per waiting call, so that a change wakes those it concerns and nobody else.
  struct Sleeper {
    std::condition_variable condition;
    bool awake = false;

    void wake() {
      awake = true;
      condition.notify_one();
    }
    bool sleep(std::unique_lock<std::mutex>& lock, Deadline deadline) {
      const auto done = [this] { return awake; };
      if (deadline.is_never()) {
        condition.wait(lock, done);
        return true;
      }
      return condition.wait_until(lock, deadline.when(), done);
    }
  };

  void wait_for(std::unique_lock<std::mutex>& lock, const Keys& keys, bool values_only, Deadline deadline) {
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    Sleeper sleeper;
    Table::Waiter waiter([&sleeper] { sleeper.wake(); });
    if (table.wait(views, values_only, waiter)) return;
    if (sleeper.sleep(lock, deadline)) return;
    table.forget(waiter);
    Keys missing;
    for (const auto& key : keys) {
      if (values_only ? table.find(key) == nullptr : !table.contains(key)) missing.push_back(key);
    }
    throw StoreTimeoutError(describe_missing(missing));
  }
};

HashStore::HashStore() : state_(std::make_unique<State>()) {}
HashStore::~HashStore() = default;

void HashStore::do_set(std::string_view key, std::string_view value, Deadline) {
  const std::lock_guard lock(state_->mutex);
  state_->table.set(key, value);
}

std::string HashStore::do_get(std::string_view key, Deadline deadline) {
  return std::move(do_multi_get({std::string(key)}, deadline).front());
}

std::int64_t HashStore::do_add(std::string_view key, std::int64_t amount, Deadline) {
  const std::lock_guard lock(state_->mutex);
  const auto sum = state_->table.add(key, amount);
  if (!sum) throw ValueError(describe_not_a_number(key));
  return *sum;
}

std::string HashStore::do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                      Deadline) {
  const std::lock_guard lock(state_->mutex);
  return state_->table.compare_set(key, expected, desired);
}

void HashStore::do_wait(const Keys& keys, Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  state_->wait_for(lock, keys, false, deadline);
}

bool HashStore::do_check(const Keys& keys, Deadline) {
  const std::lock_guard lock(state_->mutex);
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) { return state_->table.contains(key); });
}

bool HashStore::do_delete_key(std::string_view key, Deadline) {
  const std::lock_guard lock(state_->mutex);
  return state_->table.erase(key);
}

std::int64_t HashStore::do_num_keys(Deadline) {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->table.size());
}

void HashStore::do_append(std::string_view key, std::string_view value, Deadline) {
  const std::lock_guard lock(state_->mutex);
  state_->table.append(key, value);
}

Store::Values HashStore::do_multi_get(const Keys& keys, Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  for (;;) {
    state_->wait_for(lock, keys, true, deadline);
    // Between the wake-up and this thread's turn a key may have been deleted again: then wait on.
    Values values;
    for (const auto& key : keys) {
      const auto* const value = state_->table.find(key);
      if (value == nullptr) break;
      values.push_back(*value);
    }
    if (values.size() == keys.size()) return values;
  }
}

void HashStore::do_multi_set(const Keys& keys, const Values& values, Deadline) {
  const std::lock_guard lock(state_->mutex);
  for (std::size_t i = 0; i < keys.size(); ++i) state_->table.set(keys[i], values[i]);
}

void HashStore::do_queue_push(std::string_view key, std::string_view value, Deadline) {
  const std::lock_guard lock(state_->mutex);
  state_->table.queue_push(key, std::string(value));
}

std::string HashStore::do_queue_pop(std::string_view key, bool block, Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  if (auto value = state_->table.queue_pop(key)) return *std::move(value);
  if (!block) throw QueueEmptyError(describe_empty_queue(key));
  std::string received;
  State::Sleeper sleeper;
  Table::Popper popper([&](std::string value) {
    received = std::move(value);
    sleeper.wake();
  });
  state_->table.wait_pop(key, popper);
  if (!sleeper.sleep(lock, deadline)) {
    state_->table.forget(popper);
    throw StoreTimeoutError(describe_pop_timeout(key));
  }
  return received;
}

std::int64_t HashStore::do_queue_len(std::string_view key, Deadline) {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->table.queue_len(key));
}

}  // namespace cohort
