// SPDX-License-Identifier: BSD-3-Clause
//
// What a captured step (capture.h) looks at besides its arguments: modules, DDP wrappers, optimizers, and objects of
// your own that decide how a step goes.
//
//   auto step = cohort::capture(train, {.watch = {net, ddp, optimizer}});     // or their addresses: {&ddp, &optimizer}
//
// A module is guarded by which submodules, parameters and buffers are registered in it, by their memory, sizes, dtype
// and requires_grad, and by whether each submodule is in training mode. A DDP wrapper adds its group, no_sync(), its
// hooks and its buckets. An optimizer is guarded by its groups with their parameters and hyper-parameters, and by its
// state's tensors, which loading replaces. Optimizers of libtorch compute with the learning rate of the recording, so a
// new one is a new recording; those of cohort::optim take it at each replay, and it is no guard.
//
// Gradients are guarded too: whether there is one when the step begins, and how it lies in memory. A gradient that the
// step replaces without using it may be anything.
//
// Capture knows what libtorch's dictionaries hold. A member that a module's forward uses without having registered it,
// or to which another tensor was assigned after register_parameter(), is not seen.
//
//   struct Schedule : cohort::Watchable {                          // your own: describe how it looks now
//     bool freezes_backbone = false;
//     std::unique_ptr<cohort::WatchSnapshot> watch_snapshot() const override;
//   };
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace cohort {

struct WatchedTensor {
  std::string name;
  at::Tensor tensor;
};

/// How a watched object looked when a step was recorded.
class COHORT_API WatchSnapshot {
 public:
  virtual ~WatchSnapshot() = default;
  /// What has changed since, in words ("fc1.weight is another tensor", "lr was 0.1 and is 0.05"), or nullopt. Called at
  /// each replay, so it must be quick: a microsecond for a hundred parameters. The memory and the gradients of
  /// parameters() are compared by the caller.
  virtual std::optional<std::string> change() const = 0;
  /// The parameters, whose gradients the step may use, replace or remove; each once.
  virtual const std::vector<WatchedTensor>& parameters() const = 0;
};

/// An object that says itself what of it is guarded, whatever else it is (an optimizer, a module).
class COHORT_API Watchable {
 public:
  virtual ~Watchable() = default;
  virtual std::unique_ptr<WatchSnapshot> watch_snapshot() const = 0;
};

class Watched;

namespace detail {

template <class T>
concept HoldsModule = requires(const T& holder) {
  { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};
template <class T>
concept WatchedByReference = std::derived_from<T, Watchable> || std::derived_from<T, torch::nn::Module> ||
                             std::derived_from<T, torch::optim::Optimizer>;

}  // namespace detail

/// One entry of a WatchList. Modules in a shared_ptr or a holder are kept alive; what is given by reference or by
/// address must live, and stay where it is, as long as the step.
class COHORT_API Watched {
 public:
  // NOLINTBEGIN(google-explicit-constructor): a list of them is meant to be written with braces
  Watched(const torch::nn::Module& module);
  /// Its snapshot is refused with a CaptureError for LBFGS, whose step depends on values that the host reads, and for
  /// optimizers whose hyper-parameters are not known: make these Watchable.
  Watched(const torch::optim::Optimizer& optimizer);
  Watched(const Watchable& object);
  /// What is several of these.
  template <std::derived_from<Watchable> Object>
  Watched(const Object& object) : Watched(static_cast<const Watchable&>(object)) {}
  template <std::derived_from<torch::nn::Module> Module>
  Watched(std::shared_ptr<Module> module) : Watched(Kept{std::move(module)}) {}
  template <detail::HoldsModule Holder>
  Watched(const Holder& holder) : Watched(Kept{holder.ptr()}) {}
  template <detail::WatchedByReference Object>
  Watched(const Object* object) : Watched(*not_null(object)) {}
  template <detail::HoldsModule Holder>
  Watched(const Holder* holder) : Watched(*not_null(holder)) {}
  // NOLINTEND(google-explicit-constructor)

  std::unique_ptr<WatchSnapshot> snapshot() const { return make_(); }

 private:
  struct Kept {
    std::shared_ptr<const torch::nn::Module> module;
  };
  explicit Watched(Kept kept);

  template <class Object>
  static const Object* not_null(const Object* object) {
    if (object == nullptr) refuse_null();
    return object;
  }
  [[noreturn]] static void refuse_null();

  std::function<std::unique_ptr<WatchSnapshot>()> make_;
};
using WatchList = std::vector<Watched>;

}  // namespace cohort
