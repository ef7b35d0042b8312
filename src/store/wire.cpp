// SPDX-License-Identifier: BSD-3-Clause
#include "store/wire.h"

#include <initializer_list>

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

struct List {
  std::size_t count;
  std::vector<std::string_view>& items;
};

/// Cuts `bytes`, which hold the lengths of all items and then the items, into lists. Returns false if they do not fit.
bool cut(std::string_view bytes, std::initializer_list<List> lists) {
  std::size_t lengths_size = 0;
  for (const auto& list : lists) lengths_size += list.count * sizeof(std::uint32_t);
  if (lengths_size > bytes.size()) return false;
  const auto* length = bytes.data();
  bytes.remove_prefix(lengths_size);
  for (const auto& [count, items] : lists) {
    items.reserve(count);
    for (std::size_t i = 0; i < count; ++i, length += sizeof(std::uint32_t)) {
      const std::size_t size = load_le<std::uint32_t>(length);
      if (size > bytes.size()) return false;
      items.push_back(bytes.substr(0, size));
      bytes.remove_prefix(size);
    }
  }
  return bytes.empty();
}

/// On the wire an operation has the number of its StoreOp; what is not an operation follows.
constexpr auto last_operation = static_cast<std::uint8_t>(StoreOp::queue_len);
constexpr std::uint8_t will_code = last_operation + 1;
constexpr std::uint8_t cancel_code = last_operation + 2;

constexpr std::uint8_t flag_block = 1;

std::uint8_t code_of(Kind kind, StoreOp op) {
  if (kind == Kind::will) return will_code;
  return kind == Kind::cancel ? cancel_code : static_cast<std::uint8_t>(op);
}

}  // namespace

std::size_t encoded_size(const StoreRequest& request) {
  return length_size + request_head + total(request.keys) + total(request.values);
}

std::size_t encoded_size(const Reply& reply) {
  return length_size + reply_head + total(reply.values);
}

void encode(const StoreRequest& request, std::string& to, Kind kind) {
  const auto size = encoded_size(request);
  to.reserve(to.size() + size);
  append_le(to, static_cast<std::uint32_t>(size - length_size));
  append_le(to, code_of(kind, request.op));
  append_le(to, request.op == StoreOp::queue_pop && request.block ? flag_block : std::uint8_t{0});
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
  const auto size = encoded_size(reply);
  to.reserve(to.size() + size);
  append_le(to, static_cast<std::uint32_t>(size - length_size));
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
  const auto code = load_le<std::uint8_t>(body.data());
  if (code > cancel_code) return std::nullopt;
  Request request;
  auto& [kind, content] = request;
  if (code == will_code) {
    kind = Kind::will;
  } else if (code == cancel_code) {
    kind = Kind::cancel;
  } else {
    content.op = static_cast<StoreOp>(code);
  }
  content.block = (load_le<std::uint8_t>(body.data() + 1) & flag_block) != 0;
  content.number = load_le<std::int64_t>(body.data() + 4);
  const std::size_t keys = load_le<std::uint32_t>(body.data() + 12);
  const std::size_t values = load_le<std::uint32_t>(body.data() + 16);
  if (!cut(body.substr(request_head), {{keys, content.keys}, {values, content.values}})) return std::nullopt;
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
  if (!cut(body.substr(reply_head), {{values, reply.values}})) return std::nullopt;
  return reply;
}

}  // namespace cohort::wire
