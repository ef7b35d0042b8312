// SPDX-License-Identifier: BSD-3-Clause
#include "torch/optim/in_backward.h"

#include <cohort/error.h>
#include <cohort/torch/optimizer_in_backward.h>
#include <cohort/torch/zero_optimizer.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/immortal.h"
#include "torch/accumulation_hook.h"
#include "torch/optim/step_some.h"
#include "torch/written.h"

namespace cohort {

namespace in_backward {

namespace {

struct Entry {
  std::shared_ptr<Stepper> stepper{};
  int averaged = 0;  ///< how many average its gradients
};

/// By the TensorImpl, which those who made the entry keep alive.
struct Table {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Entry> entries;
  std::atomic<std::uint64_t> changes{0};
};

Table& table() {
  static Immortal<Table> entries;
  return *entries;
}

Entry find(const at::Tensor& parameter) {
  auto& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.entries.find(parameter.unsafeGetTensorImpl());
  return found == all.entries.end() ? Entry() : found->second;
}

/// Changes the entries of these parameters, and forgets those that say nothing any more.
template <class Change>
void change(std::span<const at::Tensor> parameters, Change how) {
  auto& all = table();
  const std::lock_guard lock(all.mutex);
  for (const auto& each : parameters) {
    const auto it = all.entries.try_emplace(each.unsafeGetTensorImpl()).first;
    how(it->second);
    if (it->second.stepper == nullptr && it->second.averaged == 0) all.entries.erase(it);
  }
}

}  // namespace

/// An optimizer that is attached to its parameters.
class Stepper : public std::enable_shared_from_this<Stepper> {
 public:
  Stepper(torch::optim::Optimizer& optimizer, OptimizerInBackwardOptions options)
      : optimizer_(optimizer), options_(options) {
    std::unordered_set<c10::TensorImpl*> seen;
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& each : group.params()) {
        if (each.requires_grad() && seen.insert(each.unsafeGetTensorImpl()).second) parameters_.push_back(each);
      }
    }
  }

  void attach() {
    for (const auto& each : parameters_) {
      if (find(each).stepper != nullptr) throw Error("OptimizerInBackward: another one steps a parameter already");
    }
    change(parameters_, [this](Entry& entry) { entry.stepper = shared_from_this(); });
    for (const auto& each : parameters_) {
      hooks_.emplace_back(each, [stepper = this, each] {
        if (find(each).averaged == 0) stepper->step({&each, 1});
      });
    }
    ++table().changes;
  }
  void detach() {
    hooks_.clear();
    change(parameters_, [](Entry& entry) { entry.stepper.reset(); });
    ++table().changes;
  }

  const torch::optim::Optimizer& optimizer() const noexcept { return optimizer_; }

  /// They have gradients.
  void step(std::span<const at::Tensor> parameters) {
    const std::lock_guard lock(mutex_);
    step_some(optimizer_, parameters);
    for (const auto& each : parameters) {
      mark_written(each);  // libtorch's optimizers write through data(), which does not raise the version
      if (!options_.keep_gradients) each.mutable_grad() = at::Tensor();
    }
  }

 private:
  torch::optim::Optimizer& optimizer_;
  const OptimizerInBackwardOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<AccumulationHook> hooks_;
  std::mutex mutex_;  ///< gradients on several devices arrive on several threads
};

bool is_stepped(const at::Tensor& parameter) {
  return find(parameter).stepper != nullptr;
}

std::vector<const torch::optim::Optimizer*> optimizers_of(std::span<const at::Tensor> parameters) {
  std::vector<const torch::optim::Optimizer*> all;
  for (const auto& each : parameters) {
    const auto stepper = find(each).stepper;
    if (stepper == nullptr) continue;
    const auto* const optimizer = &stepper->optimizer();
    if (std::ranges::find(all, optimizer) == all.end()) all.push_back(optimizer);
  }
  return all;
}

std::uint64_t changes() noexcept {
  return table().changes;
}

void step(std::span<const at::Tensor> parameters) {
  std::vector<std::pair<std::shared_ptr<Stepper>, std::vector<at::Tensor>>> steps;
  for (const auto& each : parameters) {
    if (!each.grad().defined()) continue;
    auto stepper = find(each).stepper;
    if (stepper == nullptr) continue;
    auto it = std::find_if(steps.begin(), steps.end(), [&](const auto& x) { return x.first == stepper; });
    if (it == steps.end()) it = steps.insert(it, {std::move(stepper), {}});
    it->second.push_back(each);
  }
  for (const auto& [stepper, some] : steps) stepper->step(some);
}

Averaged::Averaged(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
  change(parameters_, [](Entry& entry) { ++entry.averaged; });
}

Averaged::~Averaged() {
  change(parameters_, [](Entry& entry) { --entry.averaged; });
}

}  // namespace in_backward

OptimizerInBackward::OptimizerInBackward(torch::optim::Optimizer& optimizer, OptimizerInBackwardOptions options)
    : stepper_(std::make_shared<in_backward::Stepper>(optimizer, options)) {
  if (dynamic_cast<ZeroOptimizerBase*>(&optimizer) != nullptr) {
    throw ValueError("OptimizerInBackward: a ZeroOptimizer sends parameters: use register_zero_step");
  }
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw ValueError(
        "OptimizerInBackward: LBFGS computes with all gradients together, and needs backward several times");
  }
  stepper_->attach();
}

OptimizerInBackward::~OptimizerInBackward() {
  stepper_->detach();
}

}  // namespace cohort
