// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/torch/capture_watch.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <utility>

#include "torch/capture/watch_module.h"
#include "torch/capture/watch_optimizer.h"

namespace cohort {

Watched::Watched(const torch::nn::Module& module)
    : make_([&module]() -> std::unique_ptr<WatchSnapshot> {
        if (const auto* const own = dynamic_cast<const Watchable*>(&module)) return own->watch_snapshot();
        return recording::snapshot_of(module, nullptr);
      }) {}

Watched::Watched(Kept kept)
    : make_([module = kept.module]() -> std::unique_ptr<WatchSnapshot> {
        if (const auto* const own = dynamic_cast<const Watchable*>(module.get())) return own->watch_snapshot();
        return recording::snapshot_of(*module, module);
      }) {
  not_null(kept.module.get());
}

Watched::Watched(const torch::optim::Optimizer& optimizer)
    : make_([&optimizer] { return recording::snapshot_of(optimizer); }) {}

Watched::Watched(const Watchable& object) : make_([&object] { return object.watch_snapshot(); }) {}

void Watched::refuse_null() {
  throw ValueError("watch: a null pointer");
}

}  // namespace cohort
