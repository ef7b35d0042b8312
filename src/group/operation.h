// SPDX-License-Identifier: BSD-3-Clause
//
// An operation after its arguments have been checked: plain memory, ready for a backend.
#pragma once

#include <cohort/backend.h>
#include <cohort/buffer.h>
#include <cohort/operations.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "group/small_list.h"

namespace cohort::detail {

struct Operation {
  OpType type = OpType::unknown;
  DType dtype = DType::u8;
  ReduceOp reduce{};
  int root_or_peer = 0;
  int tag = 0;
  /// What goes in and what comes out, as the backend gets it: one piece, or one for each rank.
  SmallList<ConstBytes> ins{};
  SmallList<Bytes> outs{};
  /// A coalesced operation's parts; it has no memory of its own then.
  std::vector<Operation> members{};

  /// The buffers as the caller gave them: valid during submit(), which keeps copies where the operation outlives it.
  std::span<const ConstBuffer> inputs{};
  std::span<const Buffer> outputs{};
};

/// How it is to be run.
struct Issue {
  std::optional<DeviceType> device{};  ///< nothing: the default backend's
  bool async_op = false;
  Timeout timeout{};
  void* stream = nullptr;  ///< of device memory
};

/// An operation that outlives the call that issued it, with what keeps its memory alive.
class OwnedOperation {
 public:
  explicit OwnedOperation(const Operation& operation)
      : operation_(operation),
        inputs_(operation.inputs.begin(), operation.inputs.end()),
        outputs_(operation.outputs.begin(), operation.outputs.end()) {
    operation_.inputs = inputs_;
    operation_.outputs = outputs_;
  }
  OwnedOperation(const OwnedOperation&) = delete;
  OwnedOperation& operator=(const OwnedOperation&) = delete;

  const Operation& get() const { return operation_; }
  /// Whether the caller's memory may go away before the operation has ended.
  bool is_borrowed() const {
    const auto borrows = [](const auto& buffers) {
      for (const ConstBuffer& buffer : buffers) {
        if (buffer.keep_alive() == nullptr && buffer.count() > 0) return true;
      }
      return false;
    };
    return borrows(inputs_) || borrows(outputs_);
  }
  const std::vector<Buffer>& outputs() const { return outputs_; }

 private:
  Operation operation_;
  std::vector<ConstBuffer> inputs_;
  std::vector<Buffer> outputs_;
};

/// Does it; who sent, for a receive, else -1.
int perform(Backend& backend, const Operation& operation, Call& call);

/// The bytes this rank puts in, or gets out where it puts none in.
std::size_t bytes_of(const Operation& operation);

}  // namespace cohort::detail
