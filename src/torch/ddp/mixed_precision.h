// SPDX-License-Identifier: BSD-3-Clause
//
// Forward and backward in a smaller dtype. While either runs, the data of each parameter is a cast copy; at all other
// times it is the full-precision master, which is what optimizers and checkpoints see. Autograd widens each gradient as
// it arrives, since a parameter's gradient accumulator remembers the dtype that the parameter was made with.
//
// This costs one cast of each parameter per forward and, until its backward ends, a second copy of them in the smaller
// dtype.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/ddp.h>

#include <memory>
#include <mutex>
#include <vector>

#include "torch/ddp/reducer.h"

namespace cohort::ddp {

class LowPrecision : public std::enable_shared_from_this<LowPrecision> {
 public:
  LowPrecision(const MixedPrecision& how, std::vector<at::Tensor> parameters);
  /// Puts the masters back.
  ~LowPrecision();
  LowPrecision(const LowPrecision&) = delete;
  LowPrecision& operator=(const LowPrecision&) = delete;

  void begin_forward();
  /// `keeps_copies`: a backward may follow.
  void end_forward(bool keeps_copies);
  /// From now on the parameters are the copies during each backward that comes from these outputs of forward.
  void watch_backwards_of(const std::vector<at::Tensor*>& outputs);
  /// Puts the masters back and drops the copies.
  void end_backward();

  bool casts_parameters() const { return how_.param_dtype.has_value(); }
  void cast_input(at::Tensor& tensor) const;
  void cast_buffers(const std::vector<at::Tensor>& buffers) const;
  /// A hook that reduces in reduce_dtype, or else in param_dtype, over the reducer's group and with its divisor.
  CommHook reduction(const std::shared_ptr<Reducer>& reducer) const;

 private:
  struct Parameter {
    at::Tensor tensor;
    at::Tensor copy{};    ///< undefined if no backward is expected
    at::Tensor master{};  ///< while the copy is in its place
  };
  class Backward;

  void begin_backward();
  void put_copies(bool casts_anew);
  void put_masters();

  MixedPrecision how_;
  std::mutex mutex_;  ///< a backward that fails on a GPU may end on libtorch's thread
  std::vector<Parameter> parameters_;
  bool has_copies_ = false;  ///< the parameters are the copies now
};

}  // namespace cohort::ddp
