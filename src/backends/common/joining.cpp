// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/joining.h"

#include <cohort/prefix_store.h>

#include <fmt/format.h>
#include <pthread.h>

#include <charconv>
#include <system_error>
#include <utility>

#include "core/log_format.h"
#include "core/rank_index.h"
#include "core/start_thread.h"
#include "store/last_will.h"

namespace cohort {

namespace {

/// How long a rank whose part failed waits to be told that another rank was the cause.
constexpr std::chrono::milliseconds cause_timeout{200};
constexpr std::chrono::milliseconds cleaning_timeout{2000};

/// "3:abc1:d", with the length of each value in front of it.
std::string put_together(const std::vector<std::string>& values) {
  std::string text;
  for (const auto& value : values) text += fmt::format("{}:{}", value.size(), value);
  return text;
}

std::vector<std::string> take_apart(std::string_view text, int size) {
  std::vector<std::string> values;
  while (!text.empty()) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    const auto begin = static_cast<std::size_t>(end - text.data()) + 1;
    if (error != std::errc() || begin > text.size() || *end != ':' || length > text.size() - begin) break;
    values.emplace_back(text.substr(begin, length));
    text.remove_prefix(begin + length);
  }
  if (!text.empty() || values.size() != static_cast<std::size_t>(size)) {
    throw StoreError("what rank 0 has put together in the store cannot be read");
  }
  return values;
}

}  // namespace

std::vector<std::string> exchange_values(Store& store, std::string_view what, const std::string& mine, int rank,
                                         int size, Deadline deadline, const FailureCheck& failure_check) {
  const auto keys = keys_of_exchange(what, size);
  const auto all = fmt::format("{}/all", what);
  const bool is_collected = !store.has_extended_api();
  store.set(keys[index_of(rank)], mine, deadline);
  try {
    if (is_collected && rank != 0) {
      return take_apart(ask_store(deadline, failure_check, [&](Deadline until) { return store.get(all, until); }),
                        size);
    }
    auto values = ask_store(deadline, failure_check, [&](Deadline until) { return store.multi_get(keys, until); });
    if (is_collected) store.set(all, put_together(values), deadline);
    return values;
  } catch (const StoreTimeoutError&) {
    for (int each = 0; each < size; ++each) {
      if (!store.check({keys[index_of(each)]}, std::chrono::seconds(1))) {
        throw OperationTimeoutError(fmt::format("rank {} did not join", each), {.op = "new_group", .rank = each});
      }
    }
    throw;
  }
}

void delete_key_quietly(Store& store, const std::string& key) {
  try {
    store.delete_key(key, cleaning_timeout);
  } catch (const Error& e) {
    log_debug("the key {} was left in the store: {}", key, e.what());
  }
}

Store::Keys keys_of_exchange(std::string_view what, int size) {
  Store::Keys keys;
  for (int each = 0; each < size; ++each) keys.push_back(fmt::format("{}/{}", what, each));
  return keys;
}

Joining::Joining(const StorePtr& store, int rank, int size, Deadline deadline, const Store::Keys& keys) : rank_(rank) {
  if (size == 1) {
    own_keys_ = keys;
    store_ = store;
    return;
  }
  const auto on_end = [known = known_](const Failure& failure) {
    const std::lock_guard lock(known->mutex);
    known->failure = failure;
    known->changed.notify_all();
  };
  Store::Keys full;
  for (const auto& key : keys) full.push_back(full_key(store, key));
  try {
    detector_ = FailureDetector::start(std::make_shared<PrefixStore>("joining", store), rank, size, deadline, on_end,
                                       std::move(full));
  } catch (const DistributedError& e) {
    // Too few descriptors or threads: what needs them next says so, to all ranks.
    if (e.kind() == ErrorKind::timeout) throw;
    log_debug("whether the other ranks are alive cannot be told while the group is made: {}", e.what());
  }
}

Joining::~Joining() {
  for (const auto& key : own_keys_) delete_key_quietly(*store_, key);
}

FailureCheck Joining::failure_check() const {
  if (detector_ == nullptr) return nullptr;
  return [known = known_] {
    const std::lock_guard lock(known->mutex);
    return known->failure;
  };
}

void Joining::explain(const DistributedError& error) {
  // Every rank has a deadline of its own, which ends its own wait.
  if (detector_ == nullptr || error.kind() == ErrorKind::timeout) return;
  // A connection that broke says less than the news that a rank has died or given up, which may be a moment behind.
  const auto kind = error.kind();
  if (kind == ErrorKind::peer_lost || kind == ErrorKind::network || kind == ErrorKind::store) {
    std::unique_lock lock(known_->mutex);
    known_->changed.wait_for(lock, cause_timeout, [this] { return known_->failure.has_value(); });
    if (known_->failure) throw_failure(*known_->failure, {.group = error.context().group, .op = "new_group"});
  }
  give_up(error);
}

void Joining::give_up(const Error& error) {
  if (detector_ == nullptr) return;
  const auto at_fault = error.context().rank.value_or(rank_);
  const bool is_lost = error.kind() == ErrorKind::peer_lost;
  detector_->declare({.kind = is_lost ? ErrorKind::peer_lost : ErrorKind::backend,
                      .rank = at_fault,
                      .text = at_fault == rank_ ? fmt::format("rank {} could not join: {}", rank_, error.message())
                                                : error.message()});
}

FailureWatch::FailureWatch(Deadline deadline, FailureCheck failure_check, std::function<void()> stop) {
  thread_ = start_thread([this, deadline, ask = std::move(failure_check), end = std::move(stop)] {
    ::pthread_setname_np(::pthread_self(), "cohort-joining");
    std::unique_lock lock(mutex_);
    while (!is_over_) {
      const auto until = ask ? earlier(deadline, Deadline::after(failure_check_period)) : deadline;
      if (until.is_never()) {
        changed_.wait(lock, [this] { return is_over_; });
        return;
      }
      if (changed_.wait_until(lock, until.when(), [this] { return is_over_; })) return;
      if (ask) failure_ = ask();
      if (!failure_ && !deadline.expired()) continue;
      lock.unlock();
      return end();
    }
  });
}

FailureWatch::~FailureWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<Failure> FailureWatch::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace cohort
