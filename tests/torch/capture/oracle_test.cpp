// SPDX-License-Identifier: BSD-3-Clause
//
// Fifty captured steps of one process beside the same steps in eager mode: models, optimizers, clipping.
#include <cohort/torch/capture.h>
#include <cohort/torch/clip_grad.h>
#include <cohort/torch/lr_schedule.h>
#include <cohort/torch/optim.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <tuple>

#include "support/expect_error.h"
#include "torch/capture/oracle.h"

namespace cohort::test {
namespace {

struct Net : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;
};

struct Layers : Net {
  explicit Layers(torch::nn::Sequential layers) : layers_(register_module("layers", std::move(layers))) {}
  at::Tensor forward(const at::Tensor& x) override { return layers_->forward(x); }
  torch::nn::Sequential layers_;
};

struct Recurrent : Net {
  at::Tensor forward(const at::Tensor& x) override {
    return last->forward(std::get<0>(lstm->forward(x)).select(1, -1));
  }
  torch::nn::LSTM lstm = register_module(
      "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 8).num_layers(2).batch_first(true).dropout(0.2)));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(8, 3));
};

struct Encoder : Net {
  at::Tensor forward(const at::Tensor& x) override { return last->forward(encoder->forward(x).mean(0)); }
  torch::nn::TransformerEncoder encoder = register_module(
      "encoder", torch::nn::TransformerEncoder(
                     torch::nn::TransformerEncoderLayer(
                         torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.1)),
                     2));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(8, 3));
};

struct Model {
  std::string name;
  std::function<std::shared_ptr<Net>()> make;
  std::vector<std::int64_t> input;
  friend void PrintTo(const Model& it, std::ostream* out) { *out << it.name; }
};

std::shared_ptr<Net> make_mlp() {
  using namespace torch::nn;
  return std::make_shared<Layers>(Sequential(Linear(6, 12), ReLU(), Linear(12, 12), Tanh(), Linear(12, 3)));
}
std::shared_ptr<Net> make_conv_net() {
  using namespace torch::nn;
  return std::make_shared<Layers>(Sequential(Conv2d(Conv2dOptions(2, 4, 3).padding(1)), BatchNorm2d(4), ReLU(),
                                             MaxPool2d(2), Conv2d(Conv2dOptions(4, 4, 3).padding(1)), BatchNorm2d(4),
                                             ReLU(), Dropout(0.2), Flatten(), Linear(4 * 9, 3)));
}

const Model mlp{"Mlp", make_mlp, {5, 6}};
const Model conv_net{"ConvNet", make_conv_net, {5, 2, 6, 6}};
const Model recurrent{"Lstm", [] { return std::make_shared<Recurrent>(); }, {5, 4, 6}};
const Model transformer{"Transformer", [] { return std::make_shared<Encoder>(); }, {4, 5, 8}};

/// An optimizer for captured steps, and the one of libtorch that it must equal.
struct Rule {
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
  std::string name;
  Make captured;
  Make eager;
  bool has_schedule;
  friend void PrintTo(const Rule& it, std::ostream* out) { *out << it.name; }
};

template <class Optimizer, class Options>
Rule::Make make_with(Options options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

std::vector<Rule> rules() {
  const auto plain = torch::optim::SGDOptions(0.05);
  const auto momentum = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true);
  const auto adam = torch::optim::AdamOptions(0.01);
  const auto adamw = torch::optim::AdamWOptions(0.01).weight_decay(0.1);
  return {
      {"LibtorchSgd", make_with<torch::optim::SGD>(plain), make_with<torch::optim::SGD>(plain), false},
      {"LibtorchMomentum", make_with<torch::optim::SGD>(momentum), make_with<torch::optim::SGD>(momentum), false},
      {"Sgd", make_with<optim::SGD>(momentum), make_with<torch::optim::SGD>(momentum), true},
      {"Adam", make_with<optim::Adam>(adam), make_with<torch::optim::Adam>(adam), true},
      {"AdamW", make_with<optim::AdamW>(adamw), make_with<torch::optim::AdamW>(adamw), true},
  };
}

struct Training {
  bool sets_to_none = true;
  bool clips = false;
};

Trained train(bool is_captured, const Model& model, const Rule& rule, const Training& training) {
  torch::manual_seed(1);
  const auto net = model.make();
  const auto optimizer = (is_captured ? rule.captured : rule.eager)(net->parameters());
  std::optional<optim::LambdaLR> schedule;
  if (rule.has_schedule) schedule.emplace(*optimizer, optim::warm_up(5, optim::cosine(40, 0.1)));
  Trained result;
  const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
    ++result.runs;
    optim::zero_grad(*optimizer, training.sets_to_none);
    auto loss = torch::mse_loss(net->forward(x), y);
    loss.backward();
    if (training.clips) clip_grad_norm_(net->parameters(), 0.5);
    optimizer->step();
    if (schedule) schedule->step();
    return loss;
  };
  auto step = capture(body, {.watch = {net, *optimizer}});
  Numbers numbers(2);
  for (int i = 0; i < steps; ++i) {
    const auto x = numbers(model.input);
    const auto y = numbers({5, 3});
    result.losses.push_back(is_captured ? step(x, y) : body(x, y).detach());
  }
  if (is_captured) {
    EXPECT_LE(result.runs, 4) << step.explain();
  }
  result.left = left_in(*net);
  result.left.push_back(at::detail::getDefaultCPUGenerator().get_state());  // dropout drew as often
  return result;
}

class CapturedTraining : public testing::TestWithParam<std::tuple<Model, Rule>> {};

TEST_P(CapturedTraining, HasTheBitsOfEagerTraining) {
  const auto& [model, rule] = GetParam();
  for (const bool sets_to_none : {true, false}) {
    const Training training{.sets_to_none = sets_to_none};
    expect_same_training(train(true, model, rule, training), train(false, model, rule, training));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CapturedTraining,
                         testing::Combine(testing::Values(mlp, conv_net, recurrent, transformer),
                                          testing::ValuesIn(rules())),
                         [](const auto& it) { return std::get<0>(it.param).name + std::get<1>(it.param).name; });

TEST(CapturedClipping, HasTheBitsOfEagerTraining) {
  for (const auto& model : {mlp, transformer}) {
    for (const auto& rule : rules()) {
      expect_same_training(train(true, model, rule, {.clips = true}), train(false, model, rule, {.clips = true}));
    }
  }
}

TEST(CapturedClipping, RefusesLibtorchsWhichReadsTheNorm) {
  torch::nn::Linear net(4, 2);
  auto step = capture(
      [&](const at::Tensor& x) {
        net->zero_grad();
        net->forward(x).sum().backward();
        torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      },
      {.watch = {net}});
  try {
    step(at::ones({3, 4}));
    FAIL() << "the step was captured";
  } catch (const CaptureError& error) {
    EXPECT_EQ(error.reason(), CaptureRefusal::host_read);
    EXPECT_THAT(error.what(), testing::HasSubstr("cohort::clip_grad_norm_()"));
  }
  auto strict = capture(
      [&](const at::Tensor& x) {
        net->zero_grad();
        net->forward(x).sum().backward();
        clip_grad_norm_(net->parameters(), 1.0, {.error_if_nonfinite = true});
      },
      {.watch = {net}});
  EXPECT_ERROR(CaptureError, strict(at::ones({3, 4})), "error_if_nonfinite");
}

/// Losses stay what they were: a replay does not write into the results of an earlier one.
TEST(CapturedResults, AreNewTensorsEachTime) {
  torch::nn::Linear net(4, 2);
  auto step = capture([&](const at::Tensor& x) { return net->forward(x).sum(); }, {.watch = {net}});
  std::vector<at::Tensor> results;
  std::vector<at::Tensor> expected;
  Numbers numbers(1);
  for (int i = 0; i < 6; ++i) {
    const auto x = numbers({3, 4});
    results.push_back(step(x));
    expected.push_back(net->forward(x).sum().detach());
  }
  for (std::size_t i = 0; i < results.size(); ++i) expect_same_bits(results[i], expected[i], std::to_string(i));
}

/// Another batch size, evaluation, a frozen layer and a new parameter memory are recorded anew; what was recorded is
/// used again.
TEST(CapturedTrainingThatChanges, HasTheBitsOfEagerTraining) {
  std::vector<std::string> reasons;
  const auto run = [&](bool is_captured) {
    torch::manual_seed(3);
    const auto net = make_conv_net();
    optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
    Trained result;
    const auto body = [&](const at::Tensor& x, const at::Tensor& y) {
      ++result.runs;
      optimizer.zero_grad();
      auto loss = torch::mse_loss(net->forward(x), y);
      loss.backward();
      optimizer.step();
      return loss;
    };
    auto step = capture(body, {.watch = {net, optimizer}, .max_recordings = 16});
    Numbers numbers(4);
    for (int i = 0; i < steps; ++i) {
      if (i == 15) net->eval();
      if (i == 20) net->train();
      if (i == 25) net->parameters()[0].set_requires_grad(false);
      if (i == 35) net->parameters()[0].set_requires_grad(true);
      if (i == 40) net->parameters()[2].set_data(net->parameters()[2].detach().clone());
      const std::int64_t size = i % 10 == 9 ? 3 : 5;
      const auto x = numbers({size, 2, 6, 6});
      const auto y = numbers({size, 3});
      result.losses.push_back(is_captured ? step(x, y) : body(x, y).detach());
    }
    if (is_captured) reasons.push_back(step.explain());
    result.left = left_in(*net);
    return result;
  };
  const auto captured = run(true);
  expect_same_training(captured, run(false));
  EXPECT_LT(captured.runs, 30);
  for (const auto* const each : {"argument 1", "evaluation mode", "requires_grad"}) {
    EXPECT_THAT(reasons.front(), testing::HasSubstr(each));
  }
}

}  // namespace
}  // namespace cohort::test
