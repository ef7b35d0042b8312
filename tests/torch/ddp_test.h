// SPDX-License-Identifier: BSD-3-Clause
//
// Small models and what one expects of their gradients.
#pragma once

#include <cohort/log.h>
#include <cohort/torch/ddp.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "torch/torch_ranks.h"

namespace cohort::test {

/// y = w * x: the gradient of y.sum() is the sum of the input.
struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(double value = 1, std::int64_t size = 1) {
    weight = register_parameter("weight", torch::full({size}, value, torch::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return weight * x; }
  at::Tensor weight;
};
TORCH_MODULE(Scale);

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(std::int64_t width = 8, int layers = 3) {
    for (int i = 0; i < layers; ++i) {
      linears.push_back(register_module("layer" + std::to_string(i),
                                        torch::nn::Linear(i == 0 ? 4 : width, i + 1 == layers ? 2 : width)));
    }
    to(torch::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < linears.size(); ++i) {
      x = linears[i]->forward(x);
      if (i + 1 < linears.size()) x = torch::tanh(x);
    }
    return x;
  }
  std::vector<torch::nn::Linear> linears;
};
TORCH_MODULE(Mlp);

/// Two branches; what is used is told from outside.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    a = register_parameter("a", torch::ones({1}, torch::kDouble));
    b = register_parameter("b", torch::ones({1}, torch::kDouble));
  }
  at::Tensor forward(const at::Tensor& x, bool uses_b) { return uses_b ? a * x + b * x : a * x; }
  at::Tensor a, b;
};
TORCH_MODULE(Branches);

/// Has a backward of its own, of something that uses `w`, inside the backward that it is part of.
struct Reenters : torch::autograd::Function<Reenters> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({w});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode enabled(true);
    (context->get_saved_variables()[0] * 2).sum().backward();
    return {gradients[0], at::Tensor()};
  }
};

/// Parameters that depend on nothing but `seed`.
inline void fill(torch::nn::Module& module, std::int64_t seed) {
  const torch::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  for (auto& parameter : module.parameters()) parameter.normal_(0, 0.3, generator);
}

inline at::Tensor random_batch(std::int64_t seed, at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  return at::randn(sizes, generator, at::TensorOptions(at::kDouble));
}

inline double grad_of(const at::Tensor& parameter) {
  return parameter.grad().item<double>();
}

/// The largest difference, relative to the largest number.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  const auto scale = std::max(1e-300, b.abs().max().item<double>());
  return (a - b).abs().max().item<double>() / scale;
}

/// Trains an Mlp on shards of a batch, and another on all of it; they must not drift apart.
inline void expect_same_as_one_process(const ProcessGroupPtr& group, DdpOptions options, int steps) {
  options.process_group = group;
  Mlp net(16, 4);
  fill(*net, 1 + group->rank());
  DistributedDataParallel ddp(net, options);
  Mlp whole(16, 4);
  fill(*whole, 1);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD reference(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    const auto n = group->size();
    const auto x = random_batch(step, {4 * n, 4});
    const auto y = random_batch(1000 + step, {4 * n, 2});
    optimizer.zero_grad();
    torch::mse_loss(ddp.forward(x.narrow(0, 4 * group->rank(), 4)), y.narrow(0, 4 * group->rank(), 4)).backward();
    optimizer.step();
    reference.zero_grad();
    torch::mse_loss(whole->forward(x), y).backward();
    reference.step();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_LT(distance(net->parameters()[i], whole->parameters()[i]), 1e-10) << "parameter " << i;
  }
}

/// How often something was said while it lives.
class LogCount {
 public:
  explicit LogCount(std::string part) : part_(std::move(part)) {
    set_log_sink([this](const LogRecord& record) {
      if (record.message.find(part_) != std::string_view::npos) ++count_;
    });
  }
  ~LogCount() { set_log_sink(nullptr); }
  LogCount(const LogCount&) = delete;
  LogCount& operator=(const LogCount&) = delete;
  int value() const { return count_; }

 private:
  std::string part_;
  std::atomic<int> count_{0};
};

}  // namespace cohort::test
