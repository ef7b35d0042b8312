// SPDX-License-Identifier: BSD-3-Clause
//
// Forward and backward in a smaller type, with parameters that stay in their own: before forward each parameter's data
// is a cast copy, and when backward has ended (or forward, where there is none) it is the full-precision master again,
// which is what optimizers and checkpoints see. Autograd widens each gradient as it arrives, since a parameter's
// gradient accumulator remembers the type the parameter was made with.
//
// Costs one cast of each parameter per forward and, meanwhile, a second copy of them in the smaller type.
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
  /// Masters are back when it goes.
  ~LowPrecision();
  LowPrecision(const LowPrecision&) = delete;
  LowPrecision& operator=(const LowPrecision&) = delete;

  void swap_in();
  void swap_out();
  void cast_input(at::Tensor& tensor) const;
  void cast_buffers(const std::vector<at::Tensor>& buffers) const;
  /// Whether the parameters are the cast ones now.
  bool is_swapped_in() const { return !masters_.empty(); }
  /// Reduces in reduce_dtype, or what parameters are cast to; over the reducer's group, divided as it divides.
  CommHook reduction(const std::shared_ptr<Reducer>& reducer) const;

 private:
  MixedPrecision how_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> masters_;  ///< their data while it is swapped out; empty otherwise
};

}  // namespace cohort::ddp
