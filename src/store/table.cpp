// SPDX-License-Identifier: BSD-3-Clause
#include "store/table.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/parse.h"

namespace cohort {

using wire::Status;

namespace {

/// What the text takes on the heap, or inside of its entry.
std::size_t held(const std::string& text) {
  static const std::size_t inside = std::string().capacity();
  return text.capacity() == inside ? text.size() : text.capacity();
}

/// Room for a value that is appended to, so that many small pieces are not copied each time. std::string would double.
std::size_t with_room_to_grow(std::size_t size) {
  return size + size / 4;
}

}  // namespace

std::optional<std::int64_t> sum_with(const std::string* value, std::int64_t amount) {
  if (value == nullptr) return amount;
  const auto number = parse_integer<std::int64_t>(*value);
  std::int64_t sum = 0;
  if (!number || __builtin_add_overflow(*number, amount, &sum)) return std::nullopt;
  return sum;
}

void Table::execute(const StoreRequest& request, Caller& caller) {
  const auto key = request.keys.empty() ? std::string_view() : request.keys.front();
  wire::Reply reply;
  std::optional<std::string> popped;
  switch (request.op) {
    case StoreOp::set:
      for (std::size_t i = 0; i < request.keys.size(); ++i) set(request.keys[i], request.values[i]);
      break;
    case StoreOp::get:
      if (!contains_all(request)) return enlist(request, caller);
      reply.values = values_of(request.keys);
      break;
    case StoreOp::wait:
      if (!contains_all(request)) return enlist(request, caller);
      break;
    case StoreOp::add: {
      const auto sum = add(key, request.number);
      if (!sum) reply.status = Status::not_a_number;
      reply.number = sum.value_or(0);
      break;
    }
    case StoreOp::compare_set:
      reply.values = {compare_set(key, request.values[0], request.values[1])};
      break;
    case StoreOp::check:
      reply.number = contains_all(request) ? 1 : 0;
      break;
    case StoreOp::delete_key:
      reply.number = erase(key) ? 1 : 0;
      break;
    case StoreOp::num_keys:
      reply.number = static_cast<std::int64_t>(size());
      break;
    case StoreOp::append:
      append(key, request.values[0]);
      break;
    case StoreOp::queue_push:
      queue_push(key, std::string(request.values[0]));
      break;
    case StoreOp::queue_pop:
      popped = queue_pop(key);
      if (!popped && request.block) return enlist(request, caller);
      if (popped) {
        reply.values = {*popped};
        reply.popped = &*popped;
      } else {
        reply.status = Status::queue_empty;
      }
      break;
    case StoreOp::queue_len:
      reply.number = static_cast<std::int64_t>(queue_len(key));
      break;
  }
  caller.answer_(reply);
}

std::size_t Table::cost_of(const StoreRequest& request) const {
  std::size_t text = 0;
  for (const auto key : request.keys) text += key.size();
  for (const auto value : request.values) text += value.size();
  const auto entries = request.keys.size() * entry_overhead;
  const auto waits = request.keys.size() * wait_overhead;
  switch (request.op) {
    case StoreOp::set:
    case StoreOp::add:
    case StoreOp::compare_set:
      return text + entries;
    case StoreOp::queue_push:
      return text + entries + item_overhead;
    case StoreOp::append: {
      const auto* const value = find(request.keys.front());
      return entries + with_room_to_grow(text + (value == nullptr ? 0 : value->size()));
    }
    case StoreOp::get:
    case StoreOp::wait:
      return contains_all(request) ? 0 : text + entries + waits;
    case StoreOp::queue_pop:
      return !request.block || queue_len(request.keys.front()) > 0 ? 0 : text + entries + waits;
    case StoreOp::check:
    case StoreOp::delete_key:
    case StoreOp::num_keys:
    case StoreOp::queue_len:
      return 0;
  }
  return 0;
}

void Table::enlist(const StoreRequest& request, Caller& caller) {
  caller.op_ = request.op;
  caller.missing_ = 0;
  caller.keys_.reserve(request.keys.size());
  caller.entries_.reserve(request.keys.size());
  caller.counted_ = request.keys.size() * wait_overhead;
  bytes_ += caller.counted_;
  try {
    for (const auto key : request.keys) enlist(key, caller);
  } catch (const std::bad_alloc&) {
    withdraw(caller);
    throw;
  }
}

void Table::enlist(std::string_view key, Caller& caller) {
  const auto it = obtain(key);
  caller.keys_.push_back(it->first);
  auto& entry = it->second;
  const bool pops = caller.op_ == StoreOp::queue_pop;
  // A key that is named twice counts once. No other caller has been enlisted since, so this one is the last.
  if (!pops && !entry.waiters.empty() && entry.waiters.back() == &caller) return;
  try {
    if (pops) {
      entry.poppers.push_back(&caller);
    } else {
      entry.waiters.push_back(&caller);
    }
  } catch (const std::bad_alloc&) {
    release_if_unused(it);
    throw;
  }
  if (!pops && !entry.is_present(caller.op_)) ++caller.missing_;
  caller.entries_.push_back(it);
}

void Table::withdraw(Caller& caller) noexcept {
  bytes_ -= std::exchange(caller.counted_, 0);
  caller.keys_ = {};  // gives the memory back
  for (const auto it : std::exchange(caller.entries_, {})) {
    if (caller.op_ == StoreOp::queue_pop) {
      std::erase(it->second.poppers, &caller);
    } else {
      auto& waiters = it->second.waiters;
      *std::find(waiters.begin(), waiters.end(), &caller) = waiters.back();
      waiters.pop_back();
      if (waiters.size() * 4 < waiters.capacity()) waiters.shrink_to_fit();
    }
    release_if_unused(it);
  }
}

void Table::complete(Caller& caller) {
  const auto keys = std::exchange(caller.keys_, {});
  withdraw(caller);
  // All keys are present, so their entries have outlived the withdrawal.
  wire::Reply reply;
  try {
    if (caller.op_ == StoreOp::get) reply.values = values_of(keys);
  } catch (const std::bad_alloc&) {
    reply.status = Status::refused;  // there is no memory even for the reason; whoever made the change is not to blame
  }
  caller.answer_(reply);
}

void Table::cancel(Caller& caller) {
  if (!caller.is_waiting()) return;
  // A missing key's entry may go with the withdrawal, and its key with it.
  std::vector<std::string> missing;
  for (const auto key : caller.keys_) {
    if (!contains(key, caller.op_)) missing.emplace_back(key);
  }
  withdraw(caller);
  caller.answer_({.status = Status::cancelled, .values = {missing.begin(), missing.end()}});
}

Table::Entries::iterator Table::obtain(std::string_view key) {
  const auto it = entries_.find(key);
  if (it != entries_.end()) return it;
  const auto added = entries_.emplace(std::string(key), Entry{}).first;
  bytes_ += key.size() + entry_overhead;
  return added;
}

void Table::release_if_unused(Entries::iterator it) {
  if (!it->second.is_unused()) return;
  bytes_ -= it->first.size() + entry_overhead;
  entries_.erase(it);
}

/// Applies a change to one entry and adjusts the counts of those who wait for it. The callers it completes are answered
/// at the end, when the table is consistent.
template <class Change>
void Table::change(Entries::iterator it, Change&& apply) {
  auto& entry = it->second;
  const bool had_value = entry.is_present(StoreOp::get);
  const bool had_any = entry.is_present(StoreOp::wait);
  std::vector<Caller*> ready;
  ready.reserve(entry.waiters.size());  // here, because after the change nothing may fail
  try {
    apply(entry);
  } catch (const std::bad_alloc&) {
    release_if_unused(it);
    throw;
  }
  const bool has_value = entry.is_present(StoreOp::get);
  const bool has_any = entry.is_present(StoreOp::wait);
  if (had_any != has_any) has_any ? ++present_ : --present_;
  if (had_value == has_value && had_any == has_any) return;

  for (auto* const caller : entry.waiters) {
    const bool before = caller->op_ == StoreOp::get ? had_value : had_any;
    const bool after = caller->op_ == StoreOp::get ? has_value : has_any;
    if (before == after) continue;
    if (!after) {
      ++caller->missing_;
    } else if (--caller->missing_ == 0) {
      ready.push_back(caller);
    }
  }
  for (auto* const caller : ready) complete(*caller);
}

void Table::put(Entries::iterator it, std::string value) {
  change(it, [&](Entry& entry) {
    bytes_ += held(value);
    if (entry.value) bytes_ -= held(*entry.value);
    // Not by assignment: a short value would be copied into the memory of the long one before it, which it would keep.
    entry.value.emplace(std::move(value));
  });
}

void Table::set(std::string_view key, std::string_view value) {
  std::string copy(value);
  put(obtain(key), std::move(copy));
}

const std::string* Table::find(std::string_view key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() || !it->second.value ? nullptr : &*it->second.value;
}

std::vector<std::string_view> Table::values_of(const std::vector<std::string_view>& keys) const {
  std::vector<std::string_view> values;
  values.reserve(keys.size());
  for (const auto key : keys) values.emplace_back(*find(key));
  return values;
}

bool Table::contains(std::string_view key) const {
  return contains(key, StoreOp::check);
}

bool Table::contains(std::string_view key, StoreOp to) const {
  const auto it = entries_.find(key);
  return it != entries_.end() && it->second.is_present(to);
}

bool Table::contains_all(const StoreRequest& request) const {
  return std::ranges::all_of(request.keys, [&](std::string_view key) { return contains(key, request.op); });
}

std::optional<std::int64_t> Table::add(std::string_view key, std::int64_t amount) {
  const auto sum = sum_with(find(key), amount);
  if (sum) put(obtain(key), std::to_string(*sum));
  return sum;
}

std::string_view Table::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const auto* const value = find(key);
  if (!matches(value, expected)) return value == nullptr ? expected : std::string_view(*value);
  set(key, desired);
  return desired;
}

void Table::append(std::string_view key, std::string_view value) {
  const auto it = entries_.find(key);
  if (it == entries_.end() || !it->second.value) return set(key, value);
  auto& text = *it->second.value;
  const auto size = text.size() + value.size();
  if (size > text.capacity()) {
    std::string larger;
    larger.reserve(with_room_to_grow(size));
    larger.append(text);
    bytes_ += held(larger) - held(text);
    text.swap(larger);
  } else if (held(text) == text.size()) {
    bytes_ += value.size();  // inside of the entry
  }
  text.append(value);
}

bool Table::erase(std::string_view key) {
  const auto it = entries_.find(key);
  if (it == entries_.end() || !it->second.is_present(StoreOp::delete_key)) return false;
  change(it, [&](Entry& entry) {
    if (entry.value) bytes_ -= held(*entry.value);
    for (const auto& item : entry.queue) bytes_ -= held(item) + item_overhead;
    entry.value.reset();
    entry.queue.clear();
  });
  release_if_unused(it);
  return true;
}

void Table::queue_push(std::string_view key, std::string value) {
  const auto it = obtain(key);
  if (!it->second.poppers.empty()) {
    auto* const first = it->second.poppers.front();
    withdraw(*first);
    return first->answer_({.values = {value}, .popped = &value});
  }
  change(it, [&](Entry& entry) {
    const auto size = held(value) + item_overhead;
    entry.queue.push_back(std::move(value));
    bytes_ += size;
  });
}

std::optional<std::string> Table::queue_pop(std::string_view key) {
  const auto it = entries_.find(key);
  if (it == entries_.end() || it->second.queue.empty()) return std::nullopt;
  std::optional<std::string> value;
  change(it, [&](Entry& entry) {
    value = std::move(entry.queue.front());
    entry.queue.pop_front();
    bytes_ -= held(*value) + item_overhead;
  });
  release_if_unused(it);
  return value;
}

std::size_t Table::queue_len(std::string_view key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? 0 : it->second.queue.size();
}

}  // namespace cohort
