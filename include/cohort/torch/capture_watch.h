// SPDX-License-Identifier: BSD-3-Clause
//
// What a captured step (capture.h) looks at besides its arguments: modules, DDP wrappers, optimizers, and objects of your
// own that decide how a step goes.
//
//   cohort::CaptureOptions options{.watch = {net, ddp, optimizer}};
//
//   struct Schedule : cohort::Watchable { ... };                    // your own: describe how it looks now
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

namespace ddp {
class Wrapper;
}

struct WatchedTensor {
  std::string name;
  at::Tensor tensor;
};

/// How a watched object looked when a step was recorded.
class COHORT_API WatchSnapshot {
 public:
  virtual ~WatchSnapshot() = default;
  /// What has changed since, in words ("net.fc1.weight is another tensor", "lr was 0.1 and is 0.05"), or nullopt. Called
  /// at each replay, so it must be quick: a microsecond for fifty parameters.
  virtual std::optional<std::string> change() const = 0;
  /// The parameters, whose gradients the step may use, replace or remove.
  virtual const std::vector<WatchedTensor>& parameters() const = 0;
};

class COHORT_API Watchable {
 public:
  virtual ~Watchable() = default;
  virtual std::unique_ptr<WatchSnapshot> watch_snapshot() const = 0;
};

/// One entry of a WatchList. What it was made from must live as long as the step; modules are kept alive.
class COHORT_API Watched {
 public:
  // NOLINTBEGIN(google-explicit-constructor): a list of them is meant to be written with braces
  Watched(std::shared_ptr<torch::nn::Module> module);
  Watched(const ddp::Wrapper& wrapper);
  Watched(const torch::optim::Optimizer& optimizer);
  Watched(const Watchable& object);
  template <class Holder>
    requires requires(const Holder& holder) {
      { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
    }
  Watched(const Holder& holder) : Watched(std::shared_ptr<torch::nn::Module>(holder.ptr())) {}
  // NOLINTEND(google-explicit-constructor)

  std::unique_ptr<WatchSnapshot> snapshot() const { return make_(); }

 private:
  std::function<std::unique_ptr<WatchSnapshot>()> make_;
};
using WatchList = std::vector<Watched>;

}  // namespace cohort
