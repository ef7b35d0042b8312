// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/store.h>

#include <fmt/format.h>

#include <utility>

namespace cohort {

namespace {

std::vector<std::string_view> views(const std::vector<std::string>& items) {
  return {items.begin(), items.end()};
}

bool needs_queues(StoreOp op) {
  return op == StoreOp::queue_push || op == StoreOp::queue_pop || op == StoreOp::queue_len;
}

std::size_t values_in_reply(const StoreRequest& request) {
  switch (request.op) {
    case StoreOp::get:
      return request.keys.size();
    case StoreOp::compare_set:
    case StoreOp::queue_pop:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

StoreReply Store::call(const StoreRequest& request, Timeout timeout) {
  if (needs_queues(request.op) && !has_queues()) {
    throw NotSupportedError("this store has no queues: use a TcpStore or a HashStore");
  }
  auto reply = execute(request, timeout.deadline_or(this->timeout()));
  const auto expected = values_in_reply(request);
  if (reply.values.size() != expected) {
    throw StoreError(
        fmt::format("the store replied with {} values where {} are expected", reply.values.size(), expected));
  }
  return reply;
}

void Store::set(std::string_view key, std::string_view value, Timeout timeout) {
  call({.op = StoreOp::set, .keys = {key}, .values = {value}}, timeout);
}
std::string Store::get(std::string_view key, Timeout timeout) {
  return std::move(call({.op = StoreOp::get, .keys = {key}}, timeout).values.front());
}
std::int64_t Store::add(std::string_view key, std::int64_t amount, Timeout timeout) {
  return call({.op = StoreOp::add, .keys = {key}, .number = amount}, timeout).number;
}
std::string Store::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                               Timeout timeout) {
  return std::move(
      call({.op = StoreOp::compare_set, .keys = {key}, .values = {expected, desired}}, timeout).values.front());
}
void Store::wait(const Keys& keys, Timeout timeout) {
  if (!keys.empty()) call({.op = StoreOp::wait, .keys = views(keys)}, timeout);
}
bool Store::check(const Keys& keys, Timeout timeout) {
  return keys.empty() || call({.op = StoreOp::check, .keys = views(keys)}, timeout).number != 0;
}
bool Store::delete_key(std::string_view key, Timeout timeout) {
  return call({.op = StoreOp::delete_key, .keys = {key}}, timeout).number != 0;
}
std::int64_t Store::num_keys(Timeout timeout) {
  return call({.op = StoreOp::num_keys}, timeout).number;
}
void Store::append(std::string_view key, std::string_view value, Timeout timeout) {
  call({.op = StoreOp::append, .keys = {key}, .values = {value}}, timeout);
}
Store::Values Store::multi_get(const Keys& keys, Timeout timeout) {
  if (keys.empty()) return {};
  if (has_extended_api()) return call({.op = StoreOp::get, .keys = views(keys)}, timeout).values;
  const auto deadline = timeout.deadline_or(this->timeout());
  Values values;
  values.reserve(keys.size());
  for (const auto& key : keys) values.push_back(get(key, deadline));
  return values;
}
void Store::multi_set(const Keys& keys, const Values& values, Timeout timeout) {
  if (keys.size() != values.size()) {
    throw StoreError(fmt::format("multi_set: {} keys but {} values; nothing was set", keys.size(), values.size()));
  }
  if (keys.empty()) return;
  if (has_extended_api()) {
    call({.op = StoreOp::set, .keys = views(keys), .values = views(values)}, timeout);
    return;
  }
  const auto deadline = timeout.deadline_or(this->timeout());
  for (std::size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i], deadline);
}
void Store::queue_push(std::string_view key, std::string_view value, Timeout timeout) {
  call({.op = StoreOp::queue_push, .keys = {key}, .values = {value}}, timeout);
}
std::string Store::queue_pop(std::string_view key, bool block, Timeout timeout) {
  return std::move(call({.op = StoreOp::queue_pop, .keys = {key}, .block = block}, timeout).values.front());
}
std::int64_t Store::queue_len(std::string_view key, Timeout timeout) {
  return call({.op = StoreOp::queue_len, .keys = {key}}, timeout).number;
}

void Store::set_timeout(std::chrono::milliseconds timeout) {
  timeout_.store(Timeout(timeout).duration_or(default_timeout), std::memory_order_relaxed);
}
std::chrono::milliseconds Store::timeout() const {
  return timeout_.load(std::memory_order_relaxed);
}

}  // namespace cohort
