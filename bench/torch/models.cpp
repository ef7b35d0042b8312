// SPDX-License-Identifier: BSD-3-Clause
#include "models.h"

#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace cohort::benchmarks {

namespace {

using torch::Tensor;

struct Mlp : BenchModel {
  Mlp(const std::vector<std::int64_t>& widths, std::int64_t batch) : input_(torch::randn({batch, widths.front()})) {
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers_.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(widths[i], widths[i + 1])));
    }
  }
  Tensor forward(const Tensor& input) override {
    auto x = input;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      x = layers_[i]->forward(x);
      if (i + 1 < layers_.size()) x = torch::relu(x);
    }
    return x.square().mean();
  }
  Tensor input() const override { return input_; }

  Tensor input_;
  std::vector<torch::nn::Linear> layers_;
};

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

/// Two convolutions with a way around them (He et al., 2015).
struct ResidualImpl : torch::nn::Module {
  ResidualImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1(register_module("conv1", convolution(in, out, 3, stride))),
        norm1(register_module("norm1", torch::nn::BatchNorm2d(out))),
        conv2(register_module("conv2", convolution(out, out, 3, 1))),
        norm2(register_module("norm2", torch::nn::BatchNorm2d(out))) {
    if (stride == 1 && in == out) return;
    around = register_module("around", convolution(in, out, 1, stride));
    around_norm = register_module("around_norm", torch::nn::BatchNorm2d(out));
  }
  Tensor forward(const Tensor& x) {
    const auto y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (around ? around_norm(around(x)) : x));
  }
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d norm2;
  torch::nn::Conv2d around{nullptr};
  torch::nn::BatchNorm2d around_norm{nullptr};
};
TORCH_MODULE(Residual);

struct ResNet18 : BenchModel {
  ResNet18() : input_(torch::randn({4, 3, 64, 64})) {
    conv = register_module("conv", convolution(3, 64, 7, 2));
    norm = register_module("norm", torch::nn::BatchNorm2d(64));
    std::int64_t in = 64;
    for (const std::int64_t out : {64, 128, 256, 512}) {
      blocks->push_back(Residual(in, out, out == 64 ? 1 : 2));
      blocks->push_back(Residual(out, out, 1));
      in = out;
    }
    register_module("blocks", blocks);
    classes = register_module("classes", torch::nn::Linear(512, 1000));
  }
  Tensor forward(const Tensor& input) override {
    const auto x = torch::max_pool2d(torch::relu(norm(conv(input))), 3, 2, 1);
    return classes(blocks->forward(x).mean({2, 3})).square().mean();
  }
  Tensor input() const override { return input_; }

  Tensor input_;
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential blocks;
  torch::nn::Linear classes{nullptr};
};

struct ManySmall : BenchModel {
  ManySmall() : input_(torch::randn({256})) {
    for (int i = 0; i < 1000; ++i) {
      weights_.push_back(register_parameter("weight" + std::to_string(i), torch::randn({256}) * 1e-3));
    }
  }
  Tensor forward(const Tensor& input) override {
    auto x = input;
    for (const auto& weight : weights_) x = torch::addcmul(x, weight, input);
    return x.square().mean();
  }
  Tensor input() const override { return input_; }

  Tensor input_;
  std::vector<Tensor> weights_;
};

constexpr std::int64_t sleeper_size = 1 << 20;

/// Its backward leaves the processor to others, as an accelerator's would.
struct Sleep : torch::autograd::Function<Sleep> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x, const Tensor& weight) {
    return x + weight.slice(0, 0, 1);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return {gradients[0], gradients[0].expand({sleeper_size})};
  }
};

struct Sleeping : BenchModel {
  Sleeping() {
    for (int i = 0; i < 24; ++i) {
      weights_.push_back(register_parameter("weight" + std::to_string(i), torch::zeros({sleeper_size})));
    }
  }
  Tensor forward(const Tensor& input) override {
    auto x = input;
    for (const auto& weight : weights_) x = Sleep::apply(x, weight);
    return x.sum();
  }
  Tensor input() const override { return torch::ones({1}); }

  std::vector<Tensor> weights_;
};

}  // namespace

std::shared_ptr<BenchModel> make_model(const std::string& name) {
  torch::manual_seed(1);
  if (name == "mlp_small") return std::make_shared<Mlp>(std::vector<std::int64_t>{512, 768, 768, 64}, 16);
  if (name == "mlp_large") return std::make_shared<Mlp>(std::vector<std::int64_t>(5, 2500), 8);
  if (name == "resnet18") return std::make_shared<ResNet18>();
  if (name == "many_small") return std::make_shared<ManySmall>();
  if (name == "sleeping") return std::make_shared<Sleeping>();
  throw std::runtime_error("there is no model \"" + name + "\"");
}

}  // namespace cohort::benchmarks
