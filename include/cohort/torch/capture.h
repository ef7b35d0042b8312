// SPDX-License-Identifier: BSD-3-Clause
//
// Capture of a whole training step: forward, backward, collectives and optimizer are recorded and then replayed with
// new inputs, without running the step's code, autograd or the wrappers again.
//
//   cohort::optim::AdamW optimizer(ddp.parameters());               // keeps what changes per step where replay sees it
//   auto step = cohort::capture([&](torch::Tensor x, torch::Tensor y) {
//     optimizer.zero_grad();
//     auto loss = torch::mse_loss(ddp.forward(x), y);
//     loss.backward();
//     optimizer.step();
//     return loss;
//   }, {.watch = {ddp, optimizer}});
//   for (auto& [x, y] : data) step(x, y);                           // the first few calls record, later ones replay
//   std::cout << step.graph();
//
// What capture does not see. A replay does not run the callable. It sees the call's arguments and what `watch` names;
// anything else that the callable refers to (a flag, a counter, a number computed on the host, a printed line, a tensor
// that was replaced by another) stays as it was when the step was recorded. Pass it as an argument, watch it, or say it
// with on_host() and HostArgument (capture_host.h). Memory that the host reads or writes through a pointer while the
// step is recorded is not seen either; writing is refused where it can be noticed, reading is not noticed.
//
// How a call goes. The first few calls run the callable and record it, until two recordings in a row are alike: what
// the first steps of a training do differently (momentum buffers, DDP's buckets) is no part of the step then. A number
// that goes on differing is refused, by operator and argument, because a replay could not know it. From then on a call
// checks the guards, and replays. If a guard fails, the step is recorded anew; several recordings are kept. When the
// collectives of a group appear for the first time, its ranks compare them, and all throw a CaptureError if they
// differ.
//
// The result is what the callable returned, without autograd history: a step contains its own backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/torch/capture_call.h>
#include <cohort/torch/capture_error.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/capture_passes.h>
#include <cohort/torch/capture_watch.h>
#include <cohort/torch/graph.h>
#include <cohort/torch/outputs.h>
#include <cohort/torch/recorded_step.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace cohort {

struct CaptureOptions {
  /// Modules, DDP wrappers and optimizers whose state the step uses: their parameters, gradients, training flags and
  /// hyper-parameters are guarded, and gradients are where they belong after a replay.
  WatchList watch{};
  /// How many recordings are kept, for calls that differ in what is guarded (the last, smaller batch; with and without
  /// no_sync). The one that was used longest ago goes.
  std::size_t max_recordings = 8;
  /// How often the step may be recorded until two recordings in a row are alike.
  int max_attempts = 5;
  /// If the step cannot be captured: run it as it is, always, and log why, instead of throwing the CaptureError. The
  /// ranks do not compare their collectives then, because one of them may not be capturing.
  bool allow_eager = false;
  /// If not 0: every so many calls the step is run and recorded again instead of being replayed, and compared with its
  /// recording. If they differ, something that the callable refers to has changed, and replays went on with what it
  /// was: a CaptureError names the operator and the argument. All ranks of the step's groups throw it at the same call,
  /// so the option must be equal on them. The step has run to its end then, and the next call records it as it is.
  std::size_t verify_every = 0;
  /// Let the graph show the line of your code that called each operator, where the program has debug information and
  /// the library was built by GCC with its libbacktrace. Recording then takes several times as long, a replay does not.
  bool source_lines = false;
  /// On a GPU: replay as a CUDA graph, collectives of nccl included, from the second replay on. What a graph cannot
  /// contain (operators with numbers of the host that change, tensors on the CPU, collectives that go through the host)
  /// is called after it, or, if too much depends on it, the whole step is replayed by direct calls; explain() says what
  /// and why. The gradients that the step leaves are then in memory of the graph, which the next replay overwrites:
  /// clone() what is to be kept. Results are copies.
  bool cuda_graph = true;
  /// What is done to a recording before it is replayed.
  PassOptions passes{};
};

namespace detail {

/// The step without the types of its callable.
class COHORT_API CapturedStep {
 public:
  explicit CapturedStep(CaptureOptions options);
  CapturedStep(CapturedStep&&) noexcept;
  CapturedStep& operator=(CapturedStep&&) noexcept;
  ~CapturedStep();

  /// Replays, or runs the callable by `run`. A replay returns the container of the recording.
  CapturedResult call(const CapturedCall& call, const std::function<CapturedResult()>& run);

  const Graph& graph() const;
  void measure(std::size_t replays);
  const GraphTimeline& timeline() const;
  std::string explain() const;
  std::size_t recordings() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace detail

/// A step that can be called as the callable it was made from. One thread at a time calls it.
template <class Function>
class Captured {
 public:
  Captured(Function function, CaptureOptions options) : function_(std::move(function)), step_(std::move(options)) {}

  template <class... Arguments>
    requires std::invocable<Function&, Arguments&...>
  auto operator()(Arguments&&... arguments) -> std::invoke_result_t<Function&, Arguments&...> {
    using Result = std::invoke_result_t<Function&, Arguments&...>;
    detail::CapturedCall call;
    call.constants.push_back({.text = typeid(Result).name()});
    (detail::collect_argument(arguments, call), ...);
    if constexpr (std::is_void_v<Result>) {
      step_.call(call, [&] {
        function_(arguments...);
        return detail::CapturedResult();
      });
    } else {
      static_assert(detail::is_made_of_tensors<Result>(),
                    "capture() replays tensors: return tensors, containers of tensors, or structs that list theirs "
                    "(outputs.h). A number, a group or a mesh would be what it was when the step was recorded");
      const auto done = step_.call(call, [&] {
        auto container = std::make_shared<Result>(function_(arguments...));
        detail::CapturedResult result;
        visit_tensors(*container, [&](at::Tensor& tensor) { result.tensors.push_back(std::exchange(tensor, {})); });
        result.container = std::move(container);
        return result;
      });
      auto filled = *static_cast<const Result*>(done.container.get());
      std::size_t next = 0;
      visit_tensors(filled, [&](at::Tensor& tensor) { tensor = done.tensors[next++]; });
      return filled;
    }
  }

  /// The graph that was recorded or replayed last. Throws an Error before the first call.
  const Graph& graph() const { return step_.graph(); }
  /// The next replays note when each node begins and ends. What was measured before is forgotten. Other replays pay
  /// nothing for it.
  void measure(std::size_t replays) { step_.measure(replays); }
  /// Of the recording that graph() shows: the replays of it that were measured (graph_timeline.h).
  const GraphTimeline& timeline() const { return step_.timeline(); }
  /// Both, to be saved (recorded_step.h).
  RecordedStep recorded() const { return {.graph = graph(), .timeline = timeline()}; }
  /// Which recordings exist, why each was made, what the passes did to it, and what could not be captured.
  std::string explain() const { return step_.explain(); }
  /// How many recordings are kept.
  std::size_t recordings() const noexcept { return step_.recordings(); }

 private:
  Function function_;
  detail::CapturedStep step_;
};

template <class Function>
Captured<std::decay_t<Function>> capture(Function&& function, CaptureOptions options = {}) {
  return {std::forward<Function>(function), std::move(options)};
}

}  // namespace cohort
