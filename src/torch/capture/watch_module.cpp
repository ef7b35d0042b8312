// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/watch_module.h"

#include <cohort/torch/ddp.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch/capture/tensor_metadata.h"
#include "torch/capture/watch_ddp.h"
#include "torch/capture/watch_optimizer.h"
#include "torch/compat/private_members.h"
#include "torch/optim/in_backward.h"

namespace cohort::recording {

namespace {

using torch::nn::Module;
const c10::TensorImpl* address_of(const at::Tensor& tensor) noexcept {
  return tensor.unsafeGetTensorImpl();
}
const Module* address_of(const std::shared_ptr<Module>& module) noexcept {
  return module.get();
}

/// A dictionary of a module as it was. Whoever has it keeps the objects alive, so that no other one can have such an
/// address.
template <class Object>
class Entries {
 public:
  template <class Items>
  explicit Entries(const Items& items) {
    for (const auto& item : items) objects_.push_back(address_of(item.value()));
  }

  template <class Items>
  bool hold(const Items& items) const noexcept {
    if (items.size() != objects_.size()) return false;
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      if (address_of(items[i].value()) != objects_[i]) return false;
    }
    return true;
  }
  /// If they do not hold. `prefix`: of the items' names in the whole tree.
  template <class Items>
  std::string failure(const Items& items, std::string_view prefix, std::string_view kind) const {
    const auto count = std::min(items.size(), objects_.size());
    for (std::size_t i = 0; i < count; ++i) {
      if (address_of(items[i].value()) != objects_[i]) {
        return fmt::format("{}{} is another {}", prefix, items[i].key(), kind);
      }
    }
    if (items.size() > count) return fmt::format("{}{} was added", prefix, items[count].key());
    return fmt::format("{} had {} {}s and has {}", prefix.empty() ? "the module" : prefix.substr(0, prefix.size() - 1),
                       objects_.size(), kind, items.size());
  }

 private:
  std::vector<const Object*> objects_;
};

/// One module of the tree.
struct ModuleState {
  const Module* module;
  std::string prefix;  ///< of what is registered in it: "" or "fc1."
  bool is_training = module->is_training();
  Entries<c10::TensorImpl> parameters{parameters_in(*module).items()};
  Entries<c10::TensorImpl> buffers{buffers_in(*module).items()};
  Entries<Module> children{children_in(*module).items()};

  bool holds() const {
    return module->is_training() == is_training && parameters.hold(parameters_in(*module).items()) &&
           buffers.hold(buffers_in(*module).items()) && children.hold(children_in(*module).items());
  }
  std::string failure() const {
    if (module->is_training() != is_training) {
      const auto mode = [](bool trains) { return trains ? "training" : "evaluation"; };
      return fmt::format("{} was in {} mode and is in {} mode",
                         prefix.empty() ? "the module" : prefix.substr(0, prefix.size() - 1), mode(is_training),
                         mode(!is_training));
    }
    if (!parameters.hold(parameters_in(*module).items())) {
      return parameters.failure(parameters_in(*module).items(), prefix, "parameter");
    }
    if (!buffers.hold(buffers_in(*module).items()))
      return buffers.failure(buffers_in(*module).items(), prefix, "buffer");
    return children.failure(children_in(*module).items(), prefix, "submodule");
  }
};

class ModuleSnapshot final : public WatchSnapshot {
 public:
  ModuleSnapshot(const Module& module, std::shared_ptr<const Module> keeps) {
    keeps_.push_back(std::move(keeps));
    add(module, "");
    std::vector<at::Tensor> stepped;
    for (const auto& each : parameters_) stepped.push_back(each.tensor);
    for (const auto* const each : in_backward::optimizers_of(stepped)) {
      optimizers_in_backward_.push_back(snapshot_of(*each));
    }
  }

  std::optional<std::string> change() const override {
    for (const auto& each : modules_) {
      if (!each.holds()) return each.failure();
    }
    for (const auto& each : wrappers_) {
      if (auto text = each.change()) return text;
    }
    // What has been detached may be gone, and is not looked at.
    if (in_backward::changes() != in_backward_changes_) return "an optimizer in backward was attached or detached";
    for (const auto& each : optimizers_in_backward_) {
      if (auto text = each->change()) return fmt::format("an optimizer in backward: {}", *text);
    }
    for (const auto& each : buffers_) {
      if (!each.holds()) return each.failure();
    }
    return std::nullopt;
  }
  const std::vector<WatchedTensor>& parameters() const override { return parameters_; }

 private:
  void add(const Module& module, const std::string& prefix) {
    modules_.push_back({.module = &module, .prefix = prefix});
    if (const auto* const wrapper = dynamic_cast<const ddp::Wrapper*>(&module)) wrappers_.emplace_back(*wrapper);
    for (const auto& item : parameters_in(module).items()) {
      if (is_new(item.value())) parameters_.push_back({.name = prefix + item.key(), .tensor = item.value()});
    }
    for (const auto& item : buffers_in(module).items()) {
      if (is_new(item.value())) {
        buffers_.emplace_back(WatchedTensor{.name = prefix + item.key(), .tensor = item.value()}, metadata_);
      }
    }
    for (const auto& item : children_in(module).items()) {
      keeps_.push_back(item.value());
      if (item.value() != nullptr) add(*item.value(), prefix + item.key() + ".");
    }
  }
  bool is_new(const at::Tensor& tensor) {
    return tensor.defined() && seen_.insert(tensor.unsafeGetTensorImpl()).second;
  }

  std::vector<std::shared_ptr<const Module>> keeps_;
  std::vector<ModuleState> modules_;
  std::vector<DdpState> wrappers_;
  std::uint64_t in_backward_changes_ = in_backward::changes();  ///< of whatever parameters
  std::vector<std::unique_ptr<WatchSnapshot>> optimizers_in_backward_;
  MetadataPool metadata_;
  std::vector<TensorGuard> buffers_;
  std::vector<WatchedTensor> parameters_;
  std::unordered_set<const c10::TensorImpl*> seen_;  ///< a tensor may be registered under several names
};

}  // namespace

std::unique_ptr<WatchSnapshot> snapshot_of(const Module& module, std::shared_ptr<const Module> keeps) {
  return std::make_unique<ModuleSnapshot>(module, std::move(keeps));
}

}  // namespace cohort::recording
