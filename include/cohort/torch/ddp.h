// SPDX-License-Identifier: BSD-3-Clause
//
// Data-parallel training of a torch::nn::Module: every rank has the same model and its own part of each batch, and
// gradients are averaged over the ranks while backward is still computing.
//
//   auto net = std::make_shared<Net>();                        // any module with a forward(), or a module holder
//   cohort::DistributedDataParallel ddp(net, {.process_group = pg});
//   torch::optim::AdamW optimizer(ddp.parameters());
//   auto loss = torch::mse_loss(ddp.forward(x), y);            // forward has the module's own signature
//   loss.backward();                                           // gradients are averages now
//   optimizer.step();
//   { auto local = ddp.no_sync(); ... }                        // accumulate without communicating
//
// Construction is collective: it checks that all ranks have the same parameters and gives them rank 0's parameters and
// buffers. Each backward is collective, and so is each forward with gradients enabled that has buffers to send or
// buckets to rebuild. All ranks must call these in the same order. A forward under torch::NoGradGuard does not
// communicate.
//
// Parameters and buffers must not be added, removed or replaced while the wrapper lives, and all ranks must register
// them in the same order.
//
// Each backward that follows a forward is averaged once. Several forwards with one backward of all their results are
// fine, unless the module has buffers that are sent (see broadcast_buffers). A second backward without a forward
// between is an Error, since its gradients would not be averaged.
//
// The gradients lie in the buckets in which they are reduced (gradient_as_bucket_view). They can be read and zeroed as
// usual, but replacing `.grad` by another tensor during backward is an Error.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>
#include <cohort/torch/comm_hook.h>
#include <cohort/torch/ddp_logging.h>
#include <cohort/torch/join.h>
#include <cohort/torch/mesh.h>
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

/// The dtypes to compute in; those that are not given stay as they are. While forward and its backward run, parameters
/// are cast copies; at all other times they are the masters, to save, load and step. The backward is found through the
/// tensors in forward's result (outputs.h). Backwards inside a backward (activation checkpointing) are not supported.
struct MixedPrecision {
  std::optional<at::ScalarType> param_dtype{};   ///< of parameters and inputs during forward and backward
  std::optional<at::ScalarType> reduce_dtype{};  ///< of gradients while they are reduced; nullopt: param_dtype
  std::optional<at::ScalarType> buffer_dtype{};  ///< of buffers, from construction on
};

struct DdpOptions {
  /// Null: that of device_mesh, or current_process_group() at construction.
  ProcessGroupPtr process_group{};
  /// Instead of process_group: a mesh of one dimension, such as mesh["dp"], whose group it is.
  std::optional<DeviceMesh> device_mesh{};
  /// MiB of gradients that are reduced together, the first bucket included. nullopt: 25, but 1 for the first bucket.
  std::optional<double> bucket_cap_mb{};
  /// Instead of bucket_cap_mb: one cap for each bucket, the last one for all that follow.
  std::vector<double> bucket_caps_mb{};
  /// Searches the graph of each forward for parameters that it does not use. Without it every parameter must get a
  /// gradient in every backward.
  bool find_unused_parameters = false;
  /// Gradients are views of the buckets: nothing is copied after the reduction, and there is one set of gradients.
  bool gradient_as_bucket_view = true;
  /// Promises that every iteration uses the same parameters equally often. It allows unused parameters (each rank its
  /// own), several uses of one and re-entrant backwards without searching. The first iteration does not overlap.
  bool static_graph = false;
  /// Rank 0's buffers are sent to all ranks: at construction and before each forward with gradients outside no_sync.
  /// The end of a join sends those of the rank that ended last. Sending raises the buffers' autograd versions: if the
  /// graph of an earlier forward has saved them (batch norm does), its backward is an error from then on.
  bool broadcast_buffers = true;
  /// Whether forwards send buffers. nullopt: as broadcast_buffers says. false: buffers are equal after construction and
  /// each rank's own from then on.
  std::optional<bool> forward_sync_buffers{};
  /// Copies the gradients of a bucket together once all of them are there, instead of one by one as they arrive: one
  /// kernel instead of hundreds, but the gradients live until then. nullopt: on CUDA only, since on the host each
  /// gradient is best copied while it is in the cache.
  std::optional<bool> batched_grad_copy{};
  /// false: the caller has made parameters and buffers equal, and construction does not communicate.
  bool init_sync = true;
  /// Buckets of unused parameters are not reduced. Without static_graph all ranks must leave the same ones unused.
  bool skip_all_reduce_unused_params = false;
  /// The CUDA device to which forward's arguments are moved; empty for modules on the host or on several devices.
  std::vector<at::Device> device_ids{};
  std::optional<at::Device> output_device{};
  /// Names of parameters and buffers that are neither broadcast nor reduced.
  std::vector<std::string> ignored{};
  /// Parameters that are reduced together, apart from the buckets, once the gradient of `delay_until` is there.
  std::vector<std::pair<std::string, at::Tensor>> delay_all_reduce_named_params{};
  at::Tensor delay_until{};
  /// Cannot be combined with a communication hook.
  std::optional<MixedPrecision> mixed_precision{};
  /// For modules whose parameters are distributed tensors (parallelize.h): the members that hold parameters, if the
  /// module is not one of libtorch's. While it is wrapped, the module's parameters are their local parts, except within
  /// forward: make optimizers for ddp.parameters(). The group must have other ranks than the tensors' mesh:
  /// {.device_mesh = mesh["dp"]} for tensors on mesh["tp"].
  std::vector<at::Tensor*> members{};
};

/// When a buffer hook runs.
enum class BufferSync { before_forward, after_forward };
/// Gets all buffers by name and changes them in place. The futures it returns are waited for at the end of backward.
using BufferHook = std::function<std::vector<Future<void>>(const std::map<std::string, at::Tensor>& buffers)>;

namespace ddp {

/// While it lives, backwards of forwards that run meanwhile are not reduced. Guards can be nested.
class COHORT_API NoSync {
 public:
  /// Sets the wrapper's flag to false and restores it at the end.
  explicit NoSync(std::shared_ptr<bool> syncs) : syncs_(std::move(syncs)), before_(std::exchange(*syncs_, false)) {}
  ~NoSync() {
    if (syncs_ != nullptr) *syncs_ = before_;
  }
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<bool> syncs_;
  bool before_;
};

/// The part of DistributedDataParallel that does not depend on the module's type.
class COHORT_API Wrapper : public ::torch::nn::Module, public Joinable {
 public:
  /// Accumulates gradients without communicating, for forwards and backwards in the guard's scope.
  [[nodiscard]] NoSync no_sync() const;
  /// The module's parameters, each once. torch::nn::Module's own function, which this one hides, lists a parameter that
  /// is registered under several names several times, and an optimizer would step it as often.
  std::vector<at::Tensor> parameters(bool recurse = true) const;
  /// To be called before the first forward; a model can have one hook.
  void register_comm_hook(CommHook hook);
  /// Steps in backward with an optimizer whose state is sharded over the ranks (zero_optimizer.h) and that has the same
  /// parameters: the owners of a bucket's parameters step them while later buckets are still under way, and share them
  /// at once, over a group of their own (ZeroOptimizer::share_over_own_group), so that they do not queue behind those
  /// buckets. Collective. There is no step() to call; gradients can be accumulated with no_sync only, and there can be
  /// no communication hook beside it. For all other optimizers see optimizer_in_backward.h.
  void register_zero_step(std::shared_ptr<ZeroOptimizerBase> optimizer);
  void register_buffer_hook(BufferHook hook, BufferSync when = BufferSync::after_forward);
  /// Sets the option of this name; to be called before the first forward.
  void set_static_graph();
  /// Collective. Sends rank 0's buffers to all ranks now, for example before an evaluation.
  void sync_buffers();
  /// An Error if the last backward did not give every parameter its gradient. The next forward throws it as well.
  void check_reducer_finalized() const;
  /// Ends the averaging: from now on the parameters are trained on this rank alone.
  void remove_autograd_hooks();
  /// Continues with another group after a failure; null if this rank is not part of it. The gradients of a backward
  /// that failed are this rank's own: zero them. Parameters are not sent again: if one rank may have stepped and
  /// another one not, load a checkpoint. A communication hook keeps the group that it was made with: register a new
  /// one.
  void update_process_group(ProcessGroupPtr process_group);
  /// For the next backward: the rows of these sparse gradients, by parameter name, are all among `ids` (one dimension,
  /// ascending, the same on all ranks). They are then summed as dense rows, without exchanging which rank has which
  /// row. An Error for a name that is no parameter with sparse gradients, and in backward for a row that is not among
  /// the ids.
  void set_sparse_metadata(const std::map<std::string, at::Tensor>& ids);
  /// With find_unused_parameters or static_graph forward returns clones of the module's outputs; with false it returns
  /// views, which saves the copy but must not be changed in place.
  void set_sink_clone(bool clones);

  const ProcessGroupPtr& process_group() const override;
  DdpLoggingData logging_data() const;
  /// Records from now on when each iteration computes and when each bucket is reduced, at a cost of some microseconds
  /// per bucket.
  void record_timeline();
  /// The recorded times in Chrome's trace format, for Perfetto or chrome://tracing.
  std::string timeline_json() const;
  /// The first ten iterations and then every `rate`-th one are part of the statistics in logging_data().
  void set_logging_sample_rate(int rate);
  /// The parameters that are reduced, by the index that error messages use.
  std::vector<std::pair<std::string, at::Tensor>> managed_parameters() const;

  void begin_join(JoinScope& scope) override;
  void end_join() noexcept override;
  void shadow_iteration(bool syncs) override;
  void after_join(bool was_last) override;

 protected:
  /// `sees_outputs`: whether all tensors in forward's result are found; nullopt if its type is not known yet.
  Wrapper(std::shared_ptr<::torch::nn::Module> module, DdpOptions options, std::optional<bool> sees_outputs);
  ~Wrapper() override = default;

  void before_forward();
  /// While it lives, the module's parameters are those that forward computes with. They are the others again however
  /// forward ends.
  class COHORT_API ForwardScope {
   public:
    explicit ForwardScope(const Wrapper& wrapper);
    ~ForwardScope();
    ForwardScope(const ForwardScope&) = delete;
    ForwardScope& operator=(const ForwardScope&) = delete;

   private:
    const Wrapper& wrapper_;
  };
  bool moves_inputs() const;
  void move_input(at::Tensor& tensor) const;
  at::TensorOptions input_options() const;
  void after_forward(const std::vector<at::Tensor*>& outputs, bool sees_outputs);

 private:
  friend struct WrapperAccess;
  struct Impl;
  std::shared_ptr<Impl> impl_;
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

/// Types with a to() of their own, such as torch::nn::utils::rnn::PackedSequence.
template <class T>
concept MovesItself = requires(const T& value, const at::TensorOptions& options) {
  { value.to(options) } -> std::same_as<T>;
};

/// Whether all tensors in forward's result will be found; nullopt if its type depends on the arguments.
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

  /// The wrapped module.
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
  decltype(auto) in_scope(Run&& run) {
    const ForwardScope scope(*this);
    return run();
  }
  template <class Run>
  auto finish(Run&& run) {
    using Result = decltype(run());
    if constexpr (std::is_void_v<Result>) {
      in_scope(run);
      after_forward({}, true);
    } else {
      std::decay_t<Result> result = in_scope(run);
      std::vector<at::Tensor*> outputs;
      visit_tensors(result, [&](at::Tensor& tensor) { outputs.push_back(&tensor); });
      after_forward(outputs, detail::is_traversable<std::decay_t<Result>>());
      return result;
    }
  }

  std::shared_ptr<M> module_;
};

/// Accepts module holders: Linear, Sequential, and everything that TORCH_MODULE defines.
template <class Holder>
  requires std::derived_from<Holder, ::torch::nn::ModuleHolder<typename Holder::ContainedType>>
DistributedDataParallel(Holder, DdpOptions = {}) -> DistributedDataParallel<typename Holder::ContainedType>;
template <class M>
DistributedDataParallel(std::shared_ptr<M>, DdpOptions = {}) -> DistributedDataParallel<M>;

}  // namespace cohort
