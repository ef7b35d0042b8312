// SPDX-License-Identifier: BSD-3-Clause
//
// The store's protocol after the handshake: frames of a u32 length and a body, little-endian. The client sends requests
// one at a time, the server answers each exactly once; a request that waits is answered when it is ready or cancelled.
//
//   request  {op u8, flags u8, 0 u16, number i64, keys u32, values u32, length u32 each, bytes}
//   reply    {status u8, 0 u8 u16, number i64, values u32, length u32 each, bytes}
//
// Decoders are plain functions over bytes; what they return points into those bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::wire {

enum class Op : std::uint8_t {
  set,          ///< keys, values; each key gets the value beside it
  get,          ///< keys; waits; reply: values
  add,          ///< key, number; reply: number
  compare_set,  ///< key, {expected, desired}; reply: value
  wait,         ///< keys; waits
  check,        ///< keys; reply: number 1 or 0
  erase,        ///< key; reply: number 1 or 0
  count,        ///< reply: number
  append,       ///< key, value
  push,         ///< key, value
  pop,          ///< key; flag block: waits; reply: value
  length,       ///< key; reply: number
  will,    ///< keys, values: set when this connection ends, however it ends; replaces an earlier will. A number: how
           ///< many milliseconds of silence are its end
  cancel,  ///< ends the waiting request, if there is one, with Status::cancelled; has no reply of its own
};
inline constexpr Op last_op = Op::cancel;
inline constexpr std::uint8_t flag_block = 1;

enum class Status : std::uint8_t {
  ok,
  cancelled,  ///< values: the keys that are missing
  not_a_number,
  queue_empty,
  refused,  ///< values: one text
};
inline constexpr Status last_status = Status::refused;

struct Request {
  Op op = Op::set;
  std::uint8_t flags = 0;
  std::int64_t number = 0;
  std::vector<std::string_view> keys{};
  std::vector<std::string_view> values{};
};

struct Reply {
  Status status = Status::ok;
  std::int64_t number = 0;
  std::vector<std::string_view> values{};
};

inline constexpr std::size_t length_size = 4;
inline constexpr std::size_t request_head = 20;
inline constexpr std::size_t reply_head = 16;

/// Size of the frame that encode() would append, without encoding it.
std::size_t encoded_size(const Request& request);

/// Append a whole frame, length included.
void encode(const Request& request, std::string& to);
void encode(const Reply& reply, std::string& to);

/// Decode a frame's body. Nothing: malformed. Counts are checked against the bytes that are there before anything is
/// allocated for them.
std::optional<Request> decode_request(std::string_view body);
std::optional<Reply> decode_reply(std::string_view body);

}  // namespace cohort::wire
