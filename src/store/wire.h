// SPDX-License-Identifier: BSD-3-Clause
//
// The store's protocol after the handshake: frames of a u32 length and a body, little-endian. The client sends one
// request at a time, and the server sends exactly one reply to each. A request that waits is answered when it is ready
// or cancelled.
//
//   request  {op u8, flags u8, 0 u16, number i64, keys u32, values u32, length u32 each, bytes}
//   reply    {status u8, 0 u8 u16, number i64, values u32, length u32 each, bytes}
//
// Encoders and decoders are plain functions over bytes. What a decoder returns points into those bytes.
#pragma once

#include <cohort/store_request.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::wire {

enum class Kind : std::uint8_t {
  operation,  ///< an operation of Store
  will,       ///< keys and values to set when this connection ends, however it ends; replaces an earlier will. A number
              ///< above 0: the connection counts as ended after that many milliseconds of silence
  cancel,     ///< ends the waiting request, if there is one, with Status::cancelled; has no reply of its own
};

struct Request {
  Kind kind = Kind::operation;
  StoreRequest content{};  ///< of a will: keys, values and number; of a cancel: nothing
};

enum class Status : std::uint8_t {
  ok,
  cancelled,  ///< values: the keys that are missing
  not_a_number,
  queue_empty,
  refused,  ///< values: one text that says why
};
inline constexpr Status last_status = Status::refused;

/// `values` point into the store's table or into the bytes of a frame.
struct Reply {
  Status status = Status::ok;
  std::int64_t number = 0;
  std::vector<std::string_view> values{};
  /// The string that the only value points into, where it was popped from a queue: the receiver may move it.
  std::string* popped = nullptr;
};

inline constexpr std::size_t length_size = 4;
inline constexpr std::size_t request_head = 20;
inline constexpr std::size_t reply_head = 16;

/// The size of the frame that encode() would append.
std::size_t encoded_size(const StoreRequest& request);
std::size_t encoded_size(const Reply& reply);

/// Append a whole frame, length included.
void encode(const StoreRequest& request, std::string& to, Kind kind = Kind::operation);
void encode(const Reply& reply, std::string& to);

/// Decode a frame's body; nullopt if it is malformed. Counts are checked against the size of the body before anything
/// is allocated for them.
std::optional<Request> decode_request(std::string_view body);
std::optional<Reply> decode_reply(std::string_view body);

}  // namespace cohort::wire
