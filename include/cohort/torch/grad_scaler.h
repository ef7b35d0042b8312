// SPDX-License-Identifier: BSD-3-Clause
//
// Loss scaling for half precision (Micikevicius et al., "Mixed Precision Training", ICLR 2018): the loss is multiplied
// by a scale so that small gradients do not vanish. A step whose gradients overflowed is skipped and the scale halved;
// after many good steps it is doubled.
//
//   cohort::GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);                        // needed only if the gradients are used before the step:
//   cohort::clip_grad_norm_(ddp.parameters(), 1.0);
//   scaler.step(optimizer);                            // false: the step was skipped
//   scaler.update();
//
// All ranks must skip the same steps, or their weights drift apart. With DistributedDataParallel all ranks have the
// same gradients and come to the same result. Of distributed tensors (dtensor.h), and of the parts of a wrapped
// tensor-parallel module, each rank of the mesh has others: an overflow on one rank counts for all, at the cost of one
// all_reduce of one number per step and mesh dimension. If plain gradients differ (parameters that are sharded by hand,
// local steps), pass the group, for one more.
//
// The rules, the defaults and the errors for calls out of order are PyTorch's. save() and load() are for
// libtorch's archives, state_dict() and load_state_dict() make it part of a Checkpoint.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/state_dict.h>

#include <cstdint>
#include <optional>
#include <unordered_map>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim
namespace torch::serialize {
class OutputArchive;
class InputArchive;
}  // namespace torch::serialize

namespace cohort {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  /// false: scale() returns its argument and step() always steps.
  bool enabled = true;
  /// The ranks that detect overflows together, beside those of the parameters' meshes.
  ProcessGroupPtr process_group{};
};

class COHORT_API GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  /// The loss times the scale.
  at::Tensor scale(const at::Tensor& loss) const;
  /// Divides the gradients by the scale and checks them for infinities and NaN. It can be called once between two
  /// updates. Gradients in half precision are a ValueError: their parameters should be float.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// Unscales the gradients unless that was done, and steps unless one of them is infinite or NaN. Returns whether it
  /// stepped.
  bool step(torch::optim::Optimizer& optimizer);
  /// Adapts the scale, or sets it to `new_scale`. To be called at the end of an iteration, after the steps of all
  /// optimizers.
  void update(std::optional<double> new_scale = std::nullopt);

  /// The current scale; 1 if the scaler is disabled.
  double scale() const noexcept;
  /// The number of good steps since the scale last changed.
  std::int64_t growth_tracker() const noexcept { return tracker_; }
  bool is_enabled() const noexcept { return options_.enabled; }

  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  template <class To>
  void write_to(To& to) const;
  template <class From>
  void read_from(From& from);

  enum class Stage { ready, unscaled, stepped };
  struct Progress {
    Stage stage = Stage::ready;
    bool found = false;
  };

  GradScalerOptions options_;
  double scale_;
  std::int64_t tracker_ = 0;
  std::unordered_map<torch::optim::Optimizer*, Progress> progress_;  ///< since the last update
};

}  // namespace cohort
