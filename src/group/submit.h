// SPDX-License-Identifier: BSD-3-Clause
//
// How an operation is submitted to a group, and how it is stored if it outlives the call that issued it.
#pragma once

#include <cohort/operation.h>
#include <cohort/timeout.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace cohort::detail {

class WorkState;

struct SubmitOptions {
  std::optional<DeviceType> device{};  ///< nullopt: the device of the default backend
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;            ///< for device memory
  const WorkState* batch = nullptr;  ///< what the caller of a batch waits for; lives longer than its members
};

/// An operation with copies of its buffers. Buffers that have a keep-alive keep their memory alive.
class OwnedOperation {
 public:
  explicit OwnedOperation(const Operation& op)
      : op_(op),
        inputs_(op.input_buffers.begin(), op.input_buffers.end()),
        outputs_(op.output_buffers.begin(), op.output_buffers.end()) {
    op_.input_buffers = inputs_;
    op_.output_buffers = outputs_;
  }
  OwnedOperation(const OwnedOperation&) = delete;
  OwnedOperation& operator=(const OwnedOperation&) = delete;

  const Operation& get() const { return op_; }
  /// Whether the caller's memory may be freed before the operation has ended.
  bool is_borrowed() const {
    const auto borrows = [](const ConstBuffer& buffer) { return buffer.keep_alive() == nullptr && buffer.count() > 0; };
    return std::ranges::any_of(inputs_, borrows) || std::ranges::any_of(outputs_, borrows);
  }
  const std::vector<Buffer>& outputs() const { return outputs_; }

 private:
  Operation op_;
  std::vector<ConstBuffer> inputs_;
  std::vector<Buffer> outputs_;
};

/// The size of this rank's inputs, or of its outputs if it has no inputs.
std::size_t payload_bytes(const Operation& op);

}  // namespace cohort::detail
