// SPDX-License-Identifier: BSD-3-Clause
//
// Loss scaling for half precision (Micikevicius et al., "Mixed Precision Training", ICLR 2018): the loss is multiplied
// so that small gradients do not vanish; a step whose gradients overflowed is left out and the scale halved; after many
// good steps it is doubled.
//
//   cohort::GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);                        // only where gradients are looked at before the step, as here:
//   cohort::clip_grad_norm_(ddp.parameters(), 1.0);
//   scaler.step(optimizer);                            // false: left out
//   scaler.update();
//
// Ranks must leave out the same steps, or their weights drift apart. With DistributedDataParallel all ranks have the
// same gradients and so find the same; where they do not (sharded parameters, local steps) give the group: what one
// rank finds counts for all, at the cost of one small all_reduce a step.
//
// The rules, the defaults and the errors for calls out of order are PyTorch's. It is saved with save() and load(), so
// Checkpoint takes it.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>

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
  /// Off: scale() gives back what it got and step() steps.
  bool enabled = true;
  /// Whose ranks find infinities together; null: each for itself.
  ProcessGroupPtr group{};
};

class COHORT_API GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  at::Tensor scale(const at::Tensor& loss) const;
  /// Divides the gradients by the scale and looks for infinities and NaN; once between updates. Gradients in half
  /// precision are a ValueError: their parameters should be float.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// Unscales unless that was done, and steps unless something was found. Whether it stepped.
  bool step(torch::optim::Optimizer& optimizer);
  /// At the end of an iteration, after the steps of all optimizers; or sets the scale.
  void update(std::optional<double> new_scale = std::nullopt);

  /// 1 when it is off.
  double get_scale() const noexcept;
  /// Good steps since the scale last changed.
  std::int64_t growth_tracker() const noexcept { return tracker_; }
  bool is_enabled() const noexcept { return options_.enabled; }

  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
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
