// SPDX-License-Identifier: BSD-3-Clause
//
// Data-parallel training of a torch::nn::Module: every rank has the same model and its own part of each batch, and
// gradients are averaged over the ranks while backward still computes.
//
//   auto net = std::make_shared<Net>();                        // any module with a forward(), or a module holder
//   cohort::DistributedDataParallel ddp(net, {.process_group = pg});
//   torch::optim::AdamW optimizer(ddp.parameters());
//   auto loss = torch::mse_loss(ddp.forward(x), y);            // forward has the module's own signature
//   loss.backward();                                           // gradients are averages now
//   optimizer.step();
//   { auto local = ddp.no_sync(); ... }                        // accumulate without communicating
//
// Construction is collective: it checks that all ranks have the same parameters and gives them rank 0's values and
// buffers. So is each forward with gradients enabled that has buffers to send or buckets to rebuild, and each backward;
// a forward under torch::NoGradGuard communicates nothing. All ranks do these in the same order.
//
// What is promised in return: parameters and buffers are not added, removed or replaced while the wrapper lives; ranks
// register them in the same order. Several forwards before a backward need static_graph.
//
// The gradients lie in the buckets they are reduced in (gradient_as_bucket_view): they are read and zeroed as ever, but
// whoever replaces `.grad` by another tensor in the middle of backward is told so.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>
#include <cohort/torch/ddp_logging.h>
#include <cohort/torch/fused_optim.h>
#include <cohort/torch/join.h>
#include <cohort/torch/outputs.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cohort {

class ZeroOptimizerBase;

/// Types to compute in; what is not given stays as it is. Between a forward with gradients and the end of its backward
/// the parameters are cast copies: what changes them then is lost. Run forwards that have no backward under
/// torch::NoGradGuard. Not for backwards inside a backward (activation checkpointing).
struct MixedPrecision {
  std::optional<at::ScalarType> param_dtype{};   ///< of parameters and inputs during forward and backward
  std::optional<at::ScalarType> reduce_dtype{};  ///< of gradients while they travel; else param_dtype
  std::optional<at::ScalarType> buffer_dtype{};  ///< of buffers, from construction on
};

struct DdpOptions {
  /// Null: current_process_group() at construction.
  ProcessGroupPtr process_group{};
  /// How many MiB of gradients travel together; else 25, and the first bucket 1.
  std::optional<double> bucket_cap_mb{};
  /// Or for one bucket after another, the last for all that follow.
  std::vector<double> bucket_caps_mb{};
  /// Search the graph of each forward for parameters it does not use. Without it every parameter must get a gradient.
  bool find_unused_parameters = false;
  /// Gradients are the buckets' memory: nothing is copied after the reduction, and there is one set of gradients.
  bool gradient_as_bucket_view = true;
  /// A promise: the same parameters are used equally often in every iteration. Allows unused parameters, several uses
  /// of a parameter and re-entrant backwards without searching; the first iteration does not overlap.
  bool static_graph = false;
  /// Rank 0's buffers are everybody's: at construction, before each forward with gradients that synchronises (not in
  /// no_sync), and at the end of a join, where they are those of the rank that ended last.
  bool broadcast_buffers = true;
  /// Of these, whether before each forward; as broadcast_buffers where it is not said. false: buffers begin equal and
  /// are each rank's own from then on.
  std::optional<bool> forward_sync_buffers{};
  /// Gradients are copied into a bucket together when all of it are there, instead of one by one as they come: one
  /// kernel in place of hundreds, for gradients that live until then. On CUDA unless said otherwise; on the host each
  /// is copied while it is in the cache.
  std::optional<bool> batched_grad_copy{};
  /// false: the user has made parameters and buffers equal, and construction communicates nothing.
  bool init_sync = true;
  /// Buckets of nothing but unused parameters are not reduced. All ranks must have the same unused ones.
  bool skip_all_reduce_unused_params = false;
  /// One CUDA device that forward's arguments are moved to; empty for modules on the host or on several devices.
  std::vector<at::Device> device_ids{};
  std::optional<at::Device> output_device{};
  /// Names of parameters and buffers that are not touched: neither broadcast nor reduced.
  std::vector<std::string> ignored{};
  /// Parameters that are reduced together, apart from the buckets, when the gradient of `delay_until` is there.
  std::vector<std::pair<std::string, at::Tensor>> delay_all_reduce_named_params{};
  at::Tensor delay_until{};
  /// Excludes communication hooks of one's own.
  std::optional<MixedPrecision> mixed_precision{};
};

/// When a hook for buffers runs.
enum class BufferSync { before_forward, after_forward };
/// Gets all buffers by name and changes them in place; what it gives back is awaited at the end of backward.
using BufferHook = std::function<std::vector<Future<void>>(const std::map<std::string, at::Tensor>& buffers)>;

namespace ddp {

class Core;

/// While it lives, backward of forwards that ran meanwhile stays on this rank. Nests.
class COHORT_API NoSync {
 public:
  explicit NoSync(std::shared_ptr<Core> core);
  ~NoSync();
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<Core> core_;
  bool before_ = true;
};

/// Everything that does not depend on the module's type.
class COHORT_API Wrapper : public ::torch::nn::Module, public Joinable {
 public:
  /// Accumulate gradients without communicating: forward and backward in the guard's scope.
  [[nodiscard]] NoSync no_sync() const { return NoSync(core_); }
  /// Before the first forward; one for each model.
  void register_comm_hook(CommHook hook);
  /// Steps parameters at the end of backward, each bucket's as soon as it is reduced, while later ones still travel: of
  /// all parameters, or of those given. Once, and not beside a communication hook; gradients are not accumulated over
  /// several backwards with it. `clears_gradients`: they are gone afterwards, as they are when an optimizer in backward
  /// has used them.
  void register_fused_optimizer(FunctionalOptimizerPtr optimizer, std::vector<at::Tensor> parameters = {},
                                bool clears_gradients = false);
  /// The same with an optimizer whose state is spread over the ranks (zero_optimizer.h), over the same parameters: each
  /// bucket's owners step and send theirs around while later buckets still travel; there is no step() to call.
  void register_zero_step(std::shared_ptr<ZeroOptimizerBase> optimizer);
  void register_buffer_hook(BufferHook hook, BufferSync when = BufferSync::after_forward);
  /// As the option, before the first forward.
  void set_static_graph();
  /// Sends rank 0's buffers to all now: before an evaluation, say. Collective.
  void sync_buffers();
  /// An Error if the last backward did not give every parameter its gradient, which the next forward would say as well.
  void check_reducer_finalized() const;
  /// The parameters train alone from now on.
  void remove_autograd_hooks();
  /// After a failure: on from here with another group, as far as this rank is in it (null: it is not). Gradients of
  /// a backward that failed are this rank's own; zero them. Parameters are not sent again: where one rank may have
  /// stepped and another not, load a checkpoint. A communication hook
  /// keeps the group it was made with: register another.
  void update_process_group(ProcessGroupPtr group);
  /// For the next backward: the rows of each of these sparse gradients, by the parameter's name, are among `ids` (one
  /// dimension, ascending, the same on all ranks). They are then summed as dense rows, without exchanging who has
  /// which. An Error for a name that is no parameter with sparse gradients, and in backward for a row that is not among
  /// them.
  void set_sparse_metadata(const std::map<std::string, at::Tensor>& ids);
  /// Outputs that are watched (find_unused_parameters, static_graph) are handed on as clones; false: as views, which
  /// saves the copy and forbids changing them in place.
  void set_sink_clone(bool clones);

  const ProcessGroupPtr& process_group() const;
  DdpLoggingData logging_data() const;
  /// From now on notes when each iteration computed and each bucket was reduced; costs some microseconds each.
  void record_timeline();
  /// What was noted, in Chrome's trace format: for Perfetto or chrome://tracing.
  std::string timeline_json() const;
  /// Statistics of every n-th iteration, after the first ten.
  void set_logging_sample_rate(int rate);
  /// What this wrapper reduces, by index; errors count like this.
  std::vector<std::pair<std::string, at::Tensor>> managed_parameters() const;

  ProcessGroupPtr join_group() const override { return process_group(); }
  void begin_join(JoinScope& scope) override;
  void end_join() noexcept override;
  void shadow_iteration(bool syncs) override;
  void after_join(bool was_last) override;

  Core& core() const { return *core_; }

 protected:
  /// `sees_outputs`: whether forward's result is known to be one whose tensors are found; nothing where its type is not
  /// known yet.
  Wrapper(std::shared_ptr<::torch::nn::Module> module, DdpOptions options, std::optional<bool> sees_outputs);
  ~Wrapper() override = default;

  /// Around the module's own forward.
  void before_forward();
  bool moves_inputs() const;
  void move_input(at::Tensor& tensor) const;
  at::TensorOptions input_options() const;
  void after_forward(const std::vector<at::Tensor*>& outputs, bool sees_outputs);

 private:
  std::shared_ptr<Core> core_;
};

template <class M>
concept HasPlainForward = requires { &M::forward; };

template <class F>
struct ResultOf;
template <class R, class C, class... A>
struct ResultOf<R (C::*)(A...)> {
  using Type = R;
};
template <class R, class C, class... A>
struct ResultOf<R (C::*)(A...) const> {
  using Type = R;
};

/// What knows how to be elsewhere, as torch::nn::utils::rnn::PackedSequence does.
template <class T>
concept MovesItself = requires(const T& value, const at::TensorOptions& options) {
  { value.to(options) } -> std::same_as<T>;
};

/// What is known of forward's result before it is called.
template <class M>
std::optional<bool> sees_outputs_of() {
  if constexpr (HasPlainForward<M>) {
    if constexpr (requires { typename ResultOf<decltype(&M::forward)>::Type; }) {
      return detail::is_traversable<typename ResultOf<decltype(&M::forward)>::Type>();
    }
  }
  return std::nullopt;
}

}  // namespace ddp

template <class M>
class DistributedDataParallel : public ddp::Wrapper {
 public:
  explicit DistributedDataParallel(std::shared_ptr<M> module, DdpOptions options = {})
      : Wrapper(module, std::move(options), ddp::sees_outputs_of<M>()), module_(std::move(module)) {
    register_module("module", module_);
  }
  explicit DistributedDataParallel(const ::torch::nn::ModuleHolder<M>& module, DdpOptions options = {})
      : DistributedDataParallel(module.ptr(), std::move(options)) {}

  /// The wrapped one.
  const std::shared_ptr<M>& module() const { return module_; }

  template <class... Args>
  auto forward(Args&&... args) {
    before_forward();
    if (!moves_inputs()) return finish([&] { return module_->forward(std::forward<Args>(args)...); });
    auto moved = std::make_tuple(std::decay_t<Args>(std::forward<Args>(args))...);
    visit_tensors(
        moved, [this]<class T>(T & part) requires std::same_as<T, at::Tensor> || ddp::MovesItself<T> {
          if constexpr (std::same_as<T, at::Tensor>) {
            move_input(part);
          } else {
            part = part.to(input_options());
          }
        });
    return finish(
        [&] { return std::apply([this](auto&... each) { return module_->forward(std::move(each)...); }, moved); });
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

 private:
  template <class Run>
  auto finish(Run&& run) {
    using Result = decltype(run());
    if constexpr (std::is_void_v<Result>) {
      run();
      after_forward({}, true);
    } else {
      std::decay_t<Result> result = run();
      std::vector<at::Tensor*> outputs;
      visit_tensors(result, [&](at::Tensor& tensor) { outputs.push_back(&tensor); });
      after_forward(outputs, detail::is_traversable<std::decay_t<Result>>());
      return result;
    }
  }

  std::shared_ptr<M> module_;
};

/// Module holders: Linear, Sequential, whatever TORCH_MODULE makes.
template <class Holder>
  requires std::derived_from<Holder, ::torch::nn::ModuleHolder<typename Holder::ContainedType>>
DistributedDataParallel(Holder, DdpOptions = {}) -> DistributedDataParallel<typename Holder::ContainedType>;
template <class M>
DistributedDataParallel(std::shared_ptr<M>, DdpOptions = {}) -> DistributedDataParallel<M>;

}  // namespace cohort
