// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/backend.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <string>
#include <utility>

namespace cohort {

/// The error of a send or receive that missed its deadline. `peer` is negative for a receive from any source.
inline OperationTimeoutError transfer_timeout(const Call& call, int peer, ErrorContext context) {
  const bool sends = call.op() == OpType::send;
  const auto whom = peer < 0 ? std::string("any rank") : fmt::format("rank {}", peer);
  if (peer >= 0) context.rank = peer;
  OperationTimeoutError error(
      fmt::format("{} {} {} did not end within {} ms: {} has not {}", to_string(call.op()), sends ? "to" : "from", whom,
                  call.timeout().count(), whom, sends ? "received it" : "sent it"),
      std::move(context));
  return error;
}

}  // namespace cohort
