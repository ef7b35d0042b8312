// SPDX-License-Identifier: BSD-3-Clause
//
// Capture of a whole training step: forward, backward, collectives and optimizer are recorded once and replayed with new
// inputs, without running the step's code, autograd or the wrappers again.
//
//   cohort::optim::AdamW optimizer(ddp.parameters());               // keeps what changes per step where replay sees it
//   auto step = cohort::capture([&](torch::Tensor x, torch::Tensor y) {
//     optimizer.zero_grad();
//     auto loss = torch::mse_loss(ddp.forward(x), y);
//     loss.backward();
//     optimizer.step();
//     return loss;
//   }, {.watch = {net, optimizer}});
//   for (auto& [x, y] : batches) step(x, y);                        // the first calls record, later ones replay
//   std::cout << step.graph();
//
// What capture does not see. A replay does not run the callable. It sees the call's arguments and what `watch` names;
// anything else that the callable refers to (a flag, a counter, a number computed on the host, a printed line, a tensor
// that was replaced by another) stays as it was when the step was recorded. Pass it as an argument, watch it, or say it
// with on_host() and HostArgument (capture_host.h). Memory that the host reads or writes through a pointer while the step
// is recorded is not seen either; where it can be noticed, it is refused.
//
// How a call goes. The first call runs the callable and records it. The second records again and compares: what the first
// steps of a training do differently (momentum buffers, DDP's buckets) is no part of the step then, and a number that
// differs between the two is refused, by operator and argument, because a replay could not know it. From then on a call
// checks the guards, and replays. If a guard fails, the step is recorded anew; several recordings are kept.
//
// The result is what the callable returned, without autograd history: a step contains its own backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/capture_error.h>
#include <cohort/graph.h>
#include <cohort/recorded_step.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/capture_watch.h>
#include <cohort/torch/mesh.h>
#include <cohort/torch/outputs.h>
#include <cohort/torch/placement.h>

#include <array>
#include <charconv>
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
  /// If the step cannot be captured: run it as it is, always, and log why, instead of throwing the CaptureError.
  bool allow_eager = false;
};

namespace detail {

/// What of an argument is no tensor: guarded by its text, and by identity for groups. A call has one for the type of its
/// result, and then one for each argument.
struct GuardedConstant {
  std::string text;
  std::shared_ptr<const void> identity{};
  std::size_t tensors = 0;  ///< how many tensors the argument consists of
  friend bool operator==(const GuardedConstant&, const GuardedConstant&) = default;
};

struct CapturedCall {
  std::vector<at::Tensor> tensors;
  std::vector<GuardedConstant> constants;
};

/// What the callable returned: its tensors, and the object they were in, without them.
struct CapturedResult {
  std::vector<at::Tensor> tensors;
  std::shared_ptr<void> container{};
};

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

/// All digits that tell a number from others.
template <class T>
std::string text_of_number(T number) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

template <class T>
void collect_argument(const T& argument, CapturedCall& call) {
  using U = std::remove_cvref_t<T>;
  if constexpr (std::same_as<U, bool>) {
    call.constants.push_back({.text = argument ? "true" : "false"});
  } else if constexpr (std::is_arithmetic_v<U>) {
    call.constants.push_back({.text = text_of_number(argument)});
  } else if constexpr (std::is_enum_v<U>) {
    call.constants.push_back({.text = std::to_string(static_cast<long long>(argument))});
  } else if constexpr (std::convertible_to<U, std::string>) {
    call.constants.push_back({.text = argument});
  } else if constexpr (std::convertible_to<U, ProcessGroupPtr>) {
    call.constants.push_back({.text = argument == nullptr ? "no group" : argument->id(), .identity = argument});
  } else if constexpr (std::same_as<U, DeviceMesh> || std::derived_from<U, Placement> || std::same_as<U, Placements>) {
    call.constants.push_back({.text = to_string(argument)});
  } else {
    static_assert(
        is_traversable<U>(),
        "capture() cannot guard an argument of this type: pass tensors, containers of tensors, numbers, strings, "
        "groups, meshes or placements");
    std::size_t tensors = 0;
    auto parts = argument;  // handles; visiting gives references that may be written
    visit_tensors(parts, [&](at::Tensor& tensor) {
      call.tensors.push_back(tensor);
      ++tensors;
    });
    call.constants.push_back({.text = std::to_string(tensors) + " tensors", .tensors = tensors});
  }
}

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
      static_assert(detail::is_traversable<Result>(),
                    "capture() cannot find the tensors in what the callable returns: see outputs.h");
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
  /// Which recordings exist, why each was made, and what could not be captured.
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
