// SPDX-License-Identifier: BSD-3-Clause
#include "store/wire.h"

#include "core/bytes.h"

namespace cohort::wire {

namespace {

std::size_t total(const std::vector<std::string_view>& items) {
  std::size_t size = 0;
  for (const auto item : items) size += sizeof(std::uint32_t) + item.size();
  return size;
}

void append_lengths(std::string& to, const std::vector<std::string_view>& items) {
  for (const auto item : items) append_le(to, static_cast<std::uint32_t>(item.size()));
}

void append_bytes(std::string& to, const std::vector<std::string_view>& items) {
  for (const auto item : items) to.append(item);
}

/// Reads `count` lengths at `lengths` and cuts as many pieces off the front of `bytes`.
bool take(std::string_view& lengths, std::string_view& bytes, std::size_t count, std::vector<std::string_view>& into) {
  into.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t size = load_le<std::uint32_t>(lengths.data());
    lengths.remove_prefix(sizeof(std::uint32_t));
    if (size > bytes.size()) return false;
    into.push_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return true;
}

}  // namespace

std::size_t encoded_size(const Request& request) {
  return length_size + request_head + total(request.keys) + total(request.values);
}

void encode(const Request& request, std::string& to) {
  const auto size = encoded_size(request);
  to.reserve(to.size() + size);
  append_le(to, static_cast<std::uint32_t>(size - length_size));
  append_le(to, static_cast<std::uint8_t>(request.op));
  append_le(to, request.flags);
  append_le(to, std::uint16_t{0});
  append_le(to, request.number);
  append_le(to, static_cast<std::uint32_t>(request.keys.size()));
  append_le(to, static_cast<std::uint32_t>(request.values.size()));
  append_lengths(to, request.keys);
  append_lengths(to, request.values);
  append_bytes(to, request.keys);
  append_bytes(to, request.values);
}

void encode(const Reply& reply, std::string& to) {
  const auto size = reply_head + total(reply.values);
  to.reserve(to.size() + length_size + size);
  append_le(to, static_cast<std::uint32_t>(size));
  append_le(to, static_cast<std::uint8_t>(reply.status));
  append_le(to, std::uint8_t{0});
  append_le(to, std::uint16_t{0});
  append_le(to, reply.number);
  append_le(to, static_cast<std::uint32_t>(reply.values.size()));
  append_lengths(to, reply.values);
  append_bytes(to, reply.values);
}

std::optional<Request> decode_request(std::string_view body) {
  if (body.size() < request_head) return std::nullopt;
  const auto op = load_le<std::uint8_t>(body.data());
  if (op > static_cast<std::uint8_t>(last_op)) return std::nullopt;
  Request request;
  request.op = static_cast<Op>(op);
  request.flags = load_le<std::uint8_t>(body.data() + 1);
  request.number = load_le<std::int64_t>(body.data() + 4);
  const std::size_t keys = load_le<std::uint32_t>(body.data() + 12);
  const std::size_t values = load_le<std::uint32_t>(body.data() + 16);
  auto bytes = body.substr(request_head);
  const std::size_t lengths_size = (keys + values) * sizeof(std::uint32_t);
  if (lengths_size > bytes.size()) return std::nullopt;
  auto lengths = bytes.substr(0, lengths_size);
  bytes.remove_prefix(lengths_size);
  if (!take(lengths, bytes, keys, request.keys) || !take(lengths, bytes, values, request.values)) return std::nullopt;
  if (!bytes.empty()) return std::nullopt;
  return request;
}

std::optional<Reply> decode_reply(std::string_view body) {
  if (body.size() < reply_head) return std::nullopt;
  const auto status = load_le<std::uint8_t>(body.data());
  if (status > static_cast<std::uint8_t>(last_status)) return std::nullopt;
  Reply reply;
  reply.status = static_cast<Status>(status);
  reply.number = load_le<std::int64_t>(body.data() + 4);
  const std::size_t values = load_le<std::uint32_t>(body.data() + 12);
  auto bytes = body.substr(reply_head);
  const std::size_t lengths_size = values * sizeof(std::uint32_t);
  if (lengths_size > bytes.size()) return std::nullopt;
  auto lengths = bytes.substr(0, lengths_size);
  bytes.remove_prefix(lengths_size);
  if (!take(lengths, bytes, values, reply.values) || !bytes.empty()) return std::nullopt;
  return reply;
}

}  // namespace cohort::wire
