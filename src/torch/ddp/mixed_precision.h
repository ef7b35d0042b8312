// SPDX-License-Identifier: BSD-3-Clause
//
// Forward and backward in a smaller dtype. Before forward the data of each parameter is replaced by a cast copy; after
// backward, or after a forward without one, it is the full-precision master again, which is what optimizers and
// checkpoints see. Autograd widens each gradient as it arrives, since a parameter's gradient accumulator remembers the
// dtype that the parameter was made with.
//
// This costs one cast of each parameter per forward and, meanwhile, a second copy of them in the smaller dtype.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/ddp.h>

#include <memory>
#include <vector>

#include "torch/ddp/reducer.h"

namespace cohort::ddp {

class LowPrecision {
 public:
  LowPrecision(const MixedPrecision& how, std::vector<at::Tensor> parameters);
  /// Puts the masters back.
  ~LowPrecision();
  LowPrecision(const LowPrecision&) = delete;
  LowPrecision& operator=(const LowPrecision&) = delete;

  void swap_in();
  void swap_out();
  void cast_input(at::Tensor& tensor) const;
  void cast_buffers(const std::vector<at::Tensor>& buffers) const;
  /// Whether the parameters are the cast copies now.
  bool is_swapped_in() const { return !masters_.empty(); }
  /// A hook that reduces in reduce_dtype, or else in param_dtype, over the reducer's group and with its divisor.
  CommHook reduction(const std::shared_ptr<Reducer>& reducer) const;

 private:
  MixedPrecision how_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> masters_;  ///< the parameters' own data while the copies are in use, otherwise empty
};

}  // namespace cohort::ddp
