// SPDX-License-Identifier: BSD-3-Clause
//
// Plain tensors that are known to be this rank's part of a distributed tensor. While DistributedDataParallel wraps a
// module with distributed parameters, the module's parameters are such parts (torch/ddp/local_parameters.h), and so are
// the tensors that an optimizer keeps for them; a checkpoint has to know what they are parts of, and so has
// what is computed from all gradients together.
#pragma once

#include <ATen/core/Tensor.h>

#include "torch/dtensor/layout.h"

namespace cohort::dtensor {

/// Makes a part known while it exists.
class KnownPart {
 public:
  /// `local` is the part that `distributed` has on this rank.
  KnownPart(const at::Tensor& local, const at::Tensor& distributed);
  ~KnownPart();
  KnownPart(KnownPart&& other) noexcept = default;
  KnownPart& operator=(KnownPart&& other) = delete;
  KnownPart(const KnownPart&) = delete;
  KnownPart& operator=(const KnownPart&) = delete;

 private:
  at::Tensor local_;  ///< undefined after it was moved from
};

/// How a distributed tensor lies, or the one of which the tensor is a known part; null for other tensors.
LayoutPtr layout_of(const at::Tensor& tensor);

/// The distributed tensor whose part on this rank is `tensor`, or like `known` if that is a part of which `tensor` is
/// an image, as an optimizer's moments are. It shares memory with it. What is no part is returned as it is.
at::Tensor whole_of(const at::Tensor& tensor, const at::Tensor& known);
inline at::Tensor whole_of(const at::Tensor& tensor) {
  return whole_of(tensor, tensor);
}

}  // namespace cohort::dtensor
