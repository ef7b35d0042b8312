// SPDX-License-Identifier: BSD-3-Clause
//
// The memory of an operation as tensors, which c10d may use for as long as it likes.
//
// c10d cannot take an operation back: after a missed deadline it may still read and write the tensors that it was
// given. So it gets either tensors that keep the caller's memory alive, if all buffers of the operation have owners
// (tensors do), or copies. Copies also take data to the device on which c10d works.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/operation.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace cohort {

class Operands {
 public:
  using Owners = std::vector<std::shared_ptr<const void>>;

  /// Null if memory of the operation is borrowed. Looks at the buffers of the operation itself, not at its members'.
  static std::shared_ptr<const Owners> owners_of(const Operation& op);

  /// `memory` is where the operation's memory is, and `device` where c10d wants tensors.
  Operands(std::shared_ptr<const Owners> owners, at::Device memory, at::Device device)
      : owners_(std::move(owners)), memory_(memory), device_(device) {}

  /// What `from` contains.
  at::Tensor input(ConstBytes from, at::ScalarType type = at::kByte);
  /// What the tensor contains after the operation is what `to` will contain after store().
  at::Tensor output(Bytes to, at::ScalarType type = at::kByte);
  /// The same for pieces one after another.
  at::Tensor packed_input(std::span<const ConstBytes> pieces, at::ScalarType type = at::kByte);
  at::Tensor packed_output(std::span<const Bytes> pieces);
  at::Tensor packed_copy(std::span<const ConstBytes> pieces, at::ScalarType type);
  /// Memory of no one else.
  at::Tensor scratch(std::size_t bytes, at::ScalarType type = at::kByte);
  /// Copies the memory into the tensor, unless it is the tensor's own.
  void load(const at::Tensor& to, ConstBytes from) const;
  void store();

 private:
  struct Copy {
    at::Tensor from;
    Bytes to;
  };

  bool are_shared() const { return owners_ != nullptr && memory_ == device_; }
  at::Tensor shared(const std::byte* data, std::size_t bytes, at::ScalarType type) const;
  at::Tensor borrowed(const std::byte* data, std::size_t bytes, at::ScalarType type) const;

  const std::shared_ptr<const Owners> owners_;
  const at::Device memory_;
  const at::Device device_;
  std::vector<at::Tensor> tensors_;  ///< held for c10d
  std::vector<Copy> copies_;
};

}  // namespace cohort
