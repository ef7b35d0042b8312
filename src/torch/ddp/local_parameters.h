// SPDX-License-Identifier: BSD-3-Clause
//
// Parameters that are distributed tensors, beside data parallelism: DistributedDataParallel works on plain tensors, so
// the module's parameters are the local parts, except during forward, which sees the distributed tensors. Gradients
// come back through DTensor::from_local and are those of the parts.
#pragma once

#include <cohort/torch/ddp.h>

#include <memory>
#include <vector>

#include "torch/dtensor/known_parts.h"

namespace cohort::ddp {

class LocalParameters {
 public:
  /// Null if no parameter is distributed. Otherwise replaces them by their parts. Throws Error if the group shares
  /// other ranks than this one with the mesh of a parameter, or if one cannot be replaced (DdpOptions::members).
  static std::unique_ptr<LocalParameters> make(::torch::nn::Module& module, const DdpOptions& options);
  /// The module has its distributed parameters again, with the values that were trained.
  ~LocalParameters();
  LocalParameters(const LocalParameters&) = delete;
  LocalParameters& operator=(const LocalParameters&) = delete;

  /// For forward: distributed tensors that lead to the parts.
  void distribute();
  /// After forward.
  void localize() noexcept;

 private:
  struct Parameter {
    std::vector<at::Tensor*> handles;
    at::Tensor distributed;
    at::Tensor local;  ///< a leaf that shares memory with it
    dtensor::KnownPart known;
  };
  explicit LocalParameters(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {}

  std::vector<Parameter> parameters_;
};

}  // namespace cohort::ddp
