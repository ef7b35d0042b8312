// SPDX-License-Identifier: BSD-3-Clause
//
// One training, on the ranks of a group and in one process.
#include <ATen/Parallel.h>
#include <cohort/hash_store.h>
#include <cohort/new_group.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/checkpoint.h>
#include <cohort/torch/clip_grad.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/grad_scaler.h>
#include <cohort/torch/hooks.h>
#include <cohort/torch/join.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/optimizer_in_backward.h>
#include <cohort/torch/power_sgd.h>
#include <cohort/torch/sync_batch_norm.h>
#include <cohort/torch/zero_optimizer.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <type_traits>
#include <utility>

#include "support/temporary.h"
#include "torch/ddp_test.h"
#include "torch/trainings/training.h"

namespace cohort::test::trainings {

namespace {

constexpr std::int64_t rows = 3;  // of a batch
constexpr double max_norm = 0.05;
constexpr double exact = 1e-8;
constexpr double lossy = 0.2;  // with some bits of gradients or of parameters lost: nothing is missing or counted twice
/// Centered, its first steps are ten times this, whatever the gradients: where bits are lost, in any direction.
constexpr double rate_of_rmsprop = 0.0005;
constexpr double scale = 1024;  // a power of 2 changes no bits

/// Its second branch is used where forward is told so.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Training& training) : is_tied(training.has("tied", "yes")) {
    first = register_module("first", torch::nn::Linear(4, 6));
    a = register_module("a", torch::nn::Linear(6, 6));
    b = register_module("b", torch::nn::Linear(6, 6));
    last = register_module("last", torch::nn::Linear(6, 2));
    if (training.has("norm", "yes")) norm = register_module("norm", torch::nn::BatchNorm1d(6));
    to(torch::kDouble);
    if (training.has("frozen", "yes")) first->weight.requires_grad_(false);
  }
  at::Tensor forward(at::Tensor x, bool uses_b) {
    x = torch::tanh(first(x));
    if (norm) x = norm(x);
    x = torch::tanh(a(x));
    if (uses_b) x = x + b(x);
    if (is_tied) x = torch::tanh(a(x));
    return last(x);
  }
  bool is_tied;
  torch::nn::Linear first{nullptr}, a{nullptr}, b{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

bool uses_b(const Training& training, int rank, int step, int batch) {
  if (training.has("uses", "never")) return false;
  if (training.has("uses", "by_step")) return step % 2 == 0;
  if (training.has("uses", "by_rank")) return rank == 0;
  if (training.has("uses", "by_rank_and_step")) return (rank + step) % 2 == 0;
  if (training.has("uses", "by_batch")) return batch == 0;
  return true;
}

/// A rank's rows of a step: those of its batches one after another.
at::Tensor data_of(const Training& training, int rank, int step, std::int64_t columns) {
  return random_batch(1000 * training.number("seed") + 100 * columns + 10 * step + rank,
                      {training.number("batches") * rows, columns});
}

int steps_of(const Training& training, int rank) {
  const int steps = training.number("steps");
  return training.has("uneven", "yes") ? std::max(1, steps - rank) : steps;
}

using OptimizerPtr = std::shared_ptr<torch::optim::Optimizer>;

/// Calls `make` with libtorch's class, the library's, and the options for both.
template <class Make>
OptimizerPtr with_rule(const Training& training, Make&& make) {
  namespace o = torch::optim;
  const auto call = [&]<class Theirs, class Ours>(const auto& options) {
    return make(std::type_identity<Theirs>(), std::type_identity<Ours>(), options);
  };
  if (training.has("rule", "adam")) return call.template operator()<o::Adam, optim::Adam>(o::AdamOptions(0.01));
  if (training.has("rule", "adamw")) return call.template operator()<o::AdamW, optim::AdamW>(o::AdamWOptions(0.01));
  if (training.has("rule", "adagrad")) {
    return call.template operator()<o::Adagrad, optim::Adagrad>(o::AdagradOptions(0.01).lr_decay(0.1));
  }
  if (training.has("rule", "rmsprop")) {
    return call.template operator()<o::RMSprop, optim::RMSprop>(
        o::RMSpropOptions(rate_of_rmsprop).momentum(0.9).centered(true));
  }
  auto options = o::SGDOptions(0.1);
  if (training.has("rule", "momentum")) options.momentum(0.9).weight_decay(0.01);
  return call.template operator()<o::SGD, optim::SGD>(options);
}

OptimizerPtr libtorchs_optimizer(const Training& training, const std::vector<at::Tensor>& of) {
  return with_rule(training, [&]<class Theirs>(std::type_identity<Theirs>, auto, const auto& options) {
    return std::make_shared<Theirs>(of, options);
  });
}
OptimizerPtr own_optimizer(const Training& training, const std::vector<at::Tensor>& of) {
  return with_rule(training, [&]<class Ours>(auto, std::type_identity<Ours>, const auto& options) {
    return std::make_shared<Ours>(of, options);
  });
}
OptimizerPtr zero_optimizer(const Training& training, const std::vector<at::Tensor>& of, const ProcessGroupPtr& group) {
  return with_rule(training, [&]<class Ours>(auto, std::type_identity<Ours>, const auto& options) {
    return std::make_shared<ZeroOptimizer<Ours>>(of, options, ZeroOptions{.process_group = group});
  });
}

double rate_at(const Training& training, int step) {
  const bool is_sgd = training.has("rule", "sgd") || training.has("rule", "momentum");
  const double first = is_sgd ? 0.1 : training.has("rule", "rmsprop") ? rate_of_rmsprop : 0.01;
  return training.has("rate", "falling") ? first / (1 + step) : first;
}

void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

void clear_gradients(const Training& training, NetImpl& net) {
  if (training.has("zeroing", "by_module")) return net.zero_grad();
  for (auto& parameter : net.parameters()) {
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (training.has("zeroing", "to_none")) {
      gradient = at::Tensor();
    } else {
      gradient.detach().zero_();
    }
  }
}

void keep_result(NetImpl& net, Outcome& outcome) {
  for (const auto& parameter : net.parameters()) {
    outcome.values.push_back(parameter.detach().clone());
    outcome.gradients.push_back(parameter.grad().defined() ? parameter.grad().detach().clone() : at::Tensor());
  }
  for (const auto& buffer : net.buffers()) outcome.values.push_back(buffer.detach().clone());
}

DdpOptions options_of(const Training& training, const ProcessGroupPtr& group) {
  return {.process_group = group,
          .bucket_cap_mb = training.has("bucket", "small") ? std::optional(0.0001) : std::nullopt,
          .find_unused_parameters = training.has("unused", "find"),
          .gradient_as_bucket_view = training.has("view", "yes"),
          .static_graph = training.has("unused", "static"),
          .broadcast_buffers = training.has("sends_buffers", "yes"),
          .batched_grad_copy = training.has("batched_copy", "yes"),
          .skip_all_reduce_unused_params = training.has("skip_unused", "yes"),
          .mixed_precision = training.has("mixed", "bf16")
                                 ? std::optional(MixedPrecision{.param_dtype = torch::kBFloat16})
                                 : std::nullopt};
}

CommHook hook_of(const Training& training, const ProcessGroupPtr& group) {
  if (training.has("hook", "fp16")) return hooks::fp16_compress(group);
  if (training.has("hook", "bf16")) return hooks::bf16_compress(group);
  if (training.has("hook", "quantized")) return hooks::quantize_per_channel(group, 16);
  if (training.has("hook", "power_sgd")) {
    return hooks::power_sgd(std::make_shared<PowerSgdState>(PowerSgdOptions{.process_group = group,
                                                                            .matrix_approximation_rank = 6,
                                                                            .start_power_sgd_iter = 2,
                                                                            .min_compression_rate = 0.01}));
  }
  return hooks::all_reduce(group);
}

/// What one rank does, from construction to the last step.
class RankTraining {
 public:
  RankTraining(const Training& training, const ProcessGroupPtr& group)
      : training_(training), group_(group), net_(training), ddp_(prepared(), options_of(training, group)) {
    if (!training.has("hook", "none")) ddp_.register_comm_hook(hook_of(training, group));
    if (training.has("by", "libtorch")) {
      optimizer_ = libtorchs_optimizer(training, ddp_.parameters());
    } else if (training.has("by", "zero") || training.has("by", "zero_step")) {
      optimizer_ = zero_optimizer(training, ddp_.parameters(), group);
    } else {
      optimizer_ = own_optimizer(training, ddp_.parameters());
    }
    if (training.has("by", "zero_step")) {
      ddp_.register_zero_step(std::dynamic_pointer_cast<ZeroOptimizerBase>(optimizer_));
    }
    if (training.has("by", "in_backward"))
      in_backward_.emplace(*optimizer_, OptimizerInBackwardOptions{.keep_gradients = true});
    steps_in_backward_ = training.has("by", "in_backward") || training.has("by", "zero_step");
  }

  void run() {
    const auto all_steps = [&] {
      if (training_.has("captured", "yes")) return run_captured();
      for (int step = 0; step < steps_of(training_, rank()); ++step) {
        before(step);
        train(step, input(step), target(step));
      }
    };
    if (training_.has("uneven", "no")) return all_steps();
    join({&ddp_}, all_steps);
  }

  NetImpl& net() { return *net_; }

 private:
  Net& prepared() {
    fill(*net_, training_.number("seed") + 1 + group_->rank());  // construction makes them equal
    if (training_.has("norm", "yes")) convert_sync_batch_norm(*net_, group_);
    return net_;
  }
  int rank() const { return group_->rank(); }
  at::Tensor input(int step) const { return data_of(training_, rank(), step, 4); }
  at::Tensor target(int step) const { return data_of(training_, rank(), step, 2); }

  /// What happens between two steps.
  void before(int step) {
    if (training_.has("rate", "falling")) set_rate(*optimizer_, rate_at(training_, step));
    if (training_.has("evaluates", "yes")) {
      const torch::NoGradGuard no_grad;
      net_->eval();
      ddp_.forward(input(step), true);
      net_->train();
    }
    if (training_.has("reloads", "yes") && step == training_.number("steps") / 2) reload();
  }

  /// Saves a checkpoint, changes the model and the rate, and loads it: training goes on as if nothing had happened.
  void reload() {
    const TemporaryFolder folder;
    const auto path = group_->broadcast_bytes(folder / "checkpoint.safetensors");
    Checkpoint checkpoint;
    checkpoint.add("model", net_);
    if (training_.has("by", "zero") || training_.has("by", "zero_step")) {
      checkpoint.add("optimizer", dynamic_cast<ZeroOptimizerBase&>(*optimizer_));
    } else {
      checkpoint.add("optimizer", *optimizer_);
    }
    checkpoint.save(path, group_);
    fill(*net_, 99);
    set_rate(*optimizer_, 7);
    checkpoint.load(path, group_);
    group_->barrier();  // the folder is rank 0's
  }

  at::Tensor train(int step, const at::Tensor& x, const at::Tensor& y) {
    clear_gradients(training_, *net_);
    at::Tensor sum;
    const int batches = training_.number("batches");
    for (int batch = 0; batch < batches; ++batch) {
      std::optional<ddp::NoSync> local;
      if (training_.has("syncs", "last") && batch + 1 < batches) local.emplace(ddp_.no_sync());
      const auto output = ddp_.forward(x.narrow(0, batch * rows, rows), uses_b(training_, rank(), step, batch)).to(y);
      const auto loss = torch::mse_loss(output, y.narrow(0, batch * rows, rows));
      (training_.has("scales", "yes") ? scaler_.scale(loss) : loss).backward();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    if (steps_in_backward_) return sum;
    if (training_.has("clips", "yes")) {
      if (training_.has("scales", "yes")) scaler_.unscale_(*optimizer_);
      clip_grad_norm_(ddp_.parameters(), max_norm);
    }
    if (training_.has("scales", "yes")) {
      scaler_.step(*optimizer_);
      scaler_.update();
    } else {
      optimizer_->step();
    }
    return sum;
  }

  void run_captured() {
    auto step = capture([this](const at::Tensor& x, const at::Tensor& y) { return train(0, x, y); },
                        {.watch = {ddp_, *optimizer_}});
    for (int i = 0; i < steps_of(training_, rank()); ++i) {
      before(i);
      step(input(i), target(i));
    }
  }

  const Training& training_;
  ProcessGroupPtr group_;
  Net net_;
  DistributedDataParallel<NetImpl> ddp_;
  OptimizerPtr optimizer_;
  std::optional<OptimizerInBackward> in_backward_;
  bool steps_in_backward_ = false;
  GradScaler scaler_{{.init_scale = scale}};
};

std::string difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double tolerance) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::ostringstream text;
    if (a[i].defined() != b[i].defined()) {
      text << "number " << i << " is " << (a[i].defined() ? "defined" : "undefined");
    } else if (a[i].defined()) {
      const auto x = a[i].to(at::kDouble);
      const auto y = b[i].to(at::kDouble);
      const auto far = (x - y).abs().max().item<double>();
      // Not <=, so that a NaN is a difference, too.
      if (!(far <= tolerance * (1 + y.abs().max().item<double>()))) text << "number " << i << " is off by " << far;
    }
    if (!text.str().empty()) return text.str();
  }
  return {};
}

}  // namespace

Outcome train_on_rank(const Training& training, const ProcessGroupPtr& group) {
  Outcome outcome;
  try {
    RankTraining rank(training, group);
    rank.run();
    keep_result(rank.net(), outcome);
    group->barrier();
  } catch (const Error& e) {
    outcome.error = e.what();
    // A refusal is about what the program asks for. If a group fails, it is a DistributedError.
    outcome.is_refused = dynamic_cast<const DistributedError*>(&e) == nullptr;
  } catch (const std::exception& e) {
    outcome.error = e.what();
  }
  return outcome;
}

Outcome train_alone(const Training& training) {
  Net net(training);
  fill(*net, training.number("seed") + 1);
  const auto optimizer = libtorchs_optimizer(training, net->parameters());
  const int ranks = training.number("ranks");
  for (int step = 0; step < steps_of(training, 0); ++step) {
    clear_gradients(training, *net);
    set_rate(*optimizer, rate_at(training, step));
    for (int batch = 0; batch < training.number("batches"); ++batch) {
      const auto part = [&](int rank, std::int64_t columns) {
        return data_of(training, rank, step, columns).narrow(0, batch * rows, rows);
      };
      if (training.has("norm", "yes")) {
        std::vector<at::Tensor> inputs, targets;
        for (int rank = 0; rank < ranks; ++rank) {
          inputs.push_back(part(rank, 4));
          targets.push_back(part(rank, 2));
        }
        torch::mse_loss(net->forward(at::cat(inputs), uses_b(training, 0, step, batch)), at::cat(targets)).backward();
        continue;
      }
      for (int rank = 0; rank < ranks; ++rank) {
        if (step >= steps_of(training, rank)) continue;
        const auto output = net->forward(part(rank, 4), uses_b(training, rank, step, batch));
        (torch::mse_loss(output, part(rank, 2)) / ranks).backward();
      }
    }
    if (training.has("clips", "yes")) torch::nn::utils::clip_grad_norm_(net->parameters(), max_norm);
    optimizer->step();
  }
  Outcome outcome;
  keep_result(*net, outcome);
  return outcome;
}

std::string failure_of(const Training& training, bool* was_refused) {
  const auto ranks = static_cast<std::size_t>(training.number("ranks"));
  std::vector<Outcome> outcomes(ranks);
  const auto store = std::make_shared<HashStore>();
  as_threads(static_cast<int>(ranks), [&](int rank) {
    const auto group = new_group("thread", std::chrono::seconds(20), "cpu", {},
                                 {.store = store, .rank = rank, .size = static_cast<int>(ranks)});
    outcomes[static_cast<std::size_t>(rank)] = train_on_rank(training, group);
  });
  if (std::ranges::all_of(outcomes, &Outcome::is_refused)) {
    if (was_refused != nullptr) *was_refused = true;
    return {};
  }
  std::string failure;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (!outcomes[rank].error.empty()) failure += "rank " + std::to_string(rank) + ": " + outcomes[rank].error + "\n";
  }
  if (!failure.empty()) return failure;
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    const auto drift = difference(outcomes[rank].values, outcomes[0].values, 0);
    if (!drift.empty()) return "rank " + std::to_string(rank) + " is not as rank 0: " + drift;
  }
  const auto alone = train_alone(training);
  const double tolerance = training.is_exact() ? exact : lossy;
  const auto wrong = difference(outcomes[0].values, alone.values, tolerance);
  if (!wrong.empty()) return "not as in one process: " + wrong;
  const auto wrong_gradient = difference(outcomes[0].gradients, alone.gradients, tolerance);
  return wrong_gradient.empty() ? "" : "gradients are not as in one process: " + wrong_gradient;
}

}  // namespace cohort::test::trainings
