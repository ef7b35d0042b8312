// SPDX-License-Identifier: BSD-3-Clause
#include "store/reply.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cohort {

namespace {

std::string describe_missing(const std::vector<std::string_view>& keys) {
  constexpr std::size_t shown = 8;
  std::string text = keys.size() == 1 ? "timed out waiting for the key " : "timed out waiting for the keys ";
  for (std::size_t i = 0; i < std::min(keys.size(), shown); ++i)
    text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", keys[i]);
  if (keys.size() > shown) text += fmt::format(" (and {} more)", keys.size() - shown);
  return text;
}

}  // namespace

StoreReply owned(const wire::Reply& reply) {
  StoreReply result{.number = reply.number};
  if (reply.popped != nullptr) {
    result.values.push_back(std::move(*reply.popped));
  } else {
    result.values.assign(reply.values.begin(), reply.values.end());
  }
  return result;
}

void throw_store_error(const StoreRequest& request, wire::Status status, const std::vector<std::string_view>& values) {
  const auto key = request.keys.empty() ? std::string_view() : request.keys.front();
  switch (status) {
    case wire::Status::cancelled:
      if (request.op != StoreOp::queue_pop) throw StoreTimeoutError(describe_missing(values));
      throw StoreTimeoutError(fmt::format("timed out waiting for a value in the queue \"{}\"", key));
    case wire::Status::not_a_number:
      throw ValueError(
          fmt::format("add to \"{}\": its value is not a decimal number, or the sum does not fit 64 bits", key));
    case wire::Status::queue_empty:
      throw QueueEmptyError(fmt::format("the queue \"{}\" is empty", key));
    case wire::Status::ok:
    case wire::Status::refused:
      break;
  }
  throw StoreError(fmt::format("the store refused: {}", values.empty() ? "" : values.front()));
}

}  // namespace cohort
