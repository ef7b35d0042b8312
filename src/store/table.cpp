// SPDX-License-Identifier: BSD-3-Clause
#include "store/table.h"

#include <algorithm>
#include <utility>

#include "core/parse.h"

namespace cohort {

Table::Entries::iterator Table::obtain(std::string_view key) {
  const auto it = entries_.find(key);
  if (it != entries_.end()) return it;
  bytes_ += key.size() + entry_overhead;
  return entries_.emplace(std::string(key), Entry{}).first;
}

void Table::release_if_unused(Entries::iterator it) {
  const auto& entry = it->second;
  if (entry.present(false) || !entry.waiters.empty() || !entry.poppers.empty()) return;
  bytes_ -= it->first.size() + entry_overhead;
  entries_.erase(it);
}

/// Applies a change to one entry and tells its waiters what it meant for them. Those it completes fire at the end, when
/// the table is consistent, so they may look at it.
template <class Change>
void Table::change(Entries::iterator it, Change&& apply) {
  auto& entry = it->second;
  const bool had_value = entry.present(true);
  const bool had_any = entry.present(false);
  apply(entry);
  const bool has_value = entry.present(true);
  const bool has_any = entry.present(false);
  if (had_any != has_any) has_any ? ++present_ : --present_;
  if (had_value == has_value && had_any == has_any) return;

  std::vector<Waiter*> complete;
  for (auto* const waiter : entry.waiters) {
    const bool before = waiter->values_only_ ? had_value : had_any;
    const bool after = waiter->values_only_ ? has_value : has_any;
    if (before == after) continue;
    if (!after) {
      ++waiter->missing_;
    } else if (--waiter->missing_ == 0) {
      complete.push_back(waiter);
    }
  }
  for (auto* const waiter : complete) {
    forget(*waiter);
    waiter->ready_();
  }
}

void Table::put(Entries::iterator it, std::string value) {
  change(it, [&](Entry& entry) {
    bytes_ += value.size();
    if (entry.value) bytes_ -= entry.value->size();
    entry.value = std::move(value);
  });
}

void Table::set(std::string_view key, std::string_view value) {
  put(obtain(key), std::string(value));
}

const std::string* Table::find(std::string_view key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() || !it->second.value ? nullptr : &*it->second.value;
}

std::optional<std::int64_t> Table::add(std::string_view key, std::int64_t amount) {
  std::int64_t sum = amount;
  if (const auto* const value = find(key)) {
    const auto number = parse_integer<std::int64_t>(*value);
    if (!number || __builtin_add_overflow(*number, amount, &sum)) return std::nullopt;
  }
  put(obtain(key), std::to_string(sum));
  return sum;
}

std::string Table::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const auto* const value = find(key);
  if (value == nullptr && !expected.empty()) return std::string(expected);
  if (value != nullptr && *value != expected) return *value;
  put(obtain(key), std::string(desired));
  return std::string(desired);
}

void Table::append(std::string_view key, std::string_view value) {
  const auto it = obtain(key);
  if (!it->second.value) return put(it, std::string(value));
  it->second.value->append(value);
  bytes_ += value.size();
}

bool Table::contains(std::string_view key) const {
  const auto it = entries_.find(key);
  return it != entries_.end() && it->second.present(false);
}

bool Table::erase(std::string_view key) {
  const auto it = entries_.find(key);
  if (it == entries_.end() || !it->second.present(false)) return false;
  change(it, [&](Entry& entry) {
    if (entry.value) bytes_ -= entry.value->size();
    for (const auto& item : entry.queue) bytes_ -= item.size();
    entry.value.reset();
    entry.queue.clear();
  });
  release_if_unused(it);
  return true;
}

void Table::queue_push(std::string_view key, std::string value) {
  const auto it = obtain(key);
  if (auto& poppers = it->second.poppers; !poppers.empty()) {
    auto* const first = poppers.front();
    forget(*first);
    first->receive_(std::move(value));
    return;
  }
  change(it, [&](Entry& entry) {
    bytes_ += value.size();
    entry.queue.push_back(std::move(value));
  });
}

std::optional<std::string> Table::queue_pop(std::string_view key) {
  const auto it = entries_.find(key);
  if (it == entries_.end() || it->second.queue.empty()) return std::nullopt;
  std::optional<std::string> value;
  change(it, [&](Entry& entry) {
    value = std::move(entry.queue.front());
    entry.queue.pop_front();
    bytes_ -= value->size();
  });
  release_if_unused(it);
  return value;
}

std::size_t Table::queue_len(std::string_view key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? 0 : it->second.queue.size();
}

bool Table::contains_all(const std::vector<std::string_view>& keys, bool values_only) const {
  return std::all_of(keys.begin(), keys.end(),
                     [&](std::string_view key) { return values_only ? find(key) != nullptr : contains(key); });
}

bool Table::wait(const std::vector<std::string_view>& keys, bool values_only, Waiter& waiter) {
  if (contains_all(keys, values_only)) return true;
  waiter.values_only_ = values_only;
  waiter.missing_ = 0;
  waiter.on_.reserve(keys.size());
  for (const auto key : keys) {
    const auto it = obtain(key);
    // A key named twice counts once; nobody else enlisted since, so this waiter would be the last.
    if (!it->second.waiters.empty() && it->second.waiters.back() == &waiter) continue;
    it->second.waiters.push_back(&waiter);
    waiter.on_.push_back(it);
    if (!it->second.present(values_only)) ++waiter.missing_;
  }
  return false;
}

void Table::forget(Waiter& waiter) {
  const auto on = std::exchange(waiter.on_, {});
  for (const auto it : on) {
    auto& waiters = it->second.waiters;
    *std::find(waiters.begin(), waiters.end(), &waiter) = waiters.back();
    waiters.pop_back();
    release_if_unused(it);
  }
}

void Table::wait_pop(std::string_view key, Popper& popper) {
  const auto it = obtain(key);
  popper.on_ = it;
  popper.place_ = it->second.poppers.insert(it->second.poppers.end(), &popper);
}

void Table::forget(Popper& popper) {
  if (!popper.place_) return;
  popper.on_->second.poppers.erase(*popper.place_);
  popper.place_.reset();
  release_if_unused(popper.on_);
}

}  // namespace cohort
