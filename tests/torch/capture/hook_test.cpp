// SPDX-License-Identifier: BSD-3-Clause
//
// Rows GC-39 and GC-40 of the specification: backward hooks in captured steps, of tensors and of modules; and numbers
// that the host gives to operators.
#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/capture_hook.h>
#include <cohort/torch/tensor.h>
#include <torch/autograd.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using torch::nn::Linear;

Linear filled_linear(std::int64_t in, std::int64_t out) {
  Linear net(in, out);
  Numbers(3).fill(net->parameters());
  return net;
}

/// Compares the captured function with itself, over new inputs.
template <class Body>
void expect_parity(const Body& body, const WatchList& watch) {
  int runs = 0;
  auto step = capture(
      [&](const at::Tensor& x) {
        ++runs;
        return body(x);
      },
      {.watch = watch});
  Numbers numbers(1);
  for (int i = 0; i < 8; ++i) {
    const auto x = numbers({3, 4});
    expect_same_bits(step(x), body(x).detach(), "step " + std::to_string(i));
  }
  EXPECT_EQ(runs, 2) << step.explain();
}

TEST(CaptureRows, Gc40HooksOfIntermediatesAreReplayedInOrder) {
  auto net = filled_linear(4, 2);
  expect_parity(
      [&](const at::Tensor& x) {
        net->zero_grad();
        auto hidden = net->forward(x);
        hidden.register_hook([](const at::Tensor& gradient) { return gradient + 1; });
        const auto removed = hidden.register_hook([](const at::Tensor& gradient) { return gradient * 100; });
        hidden.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
        hidden.register_hook([](const at::Tensor&) {});  // returns nothing: keeps it
        hidden.remove_hook(removed);
        hidden.pow(2).sum().backward();
        return net->weight.grad() * 1;
      },
      {net});
  // (g + 1) * 2, and not g * 2 + 1.
  const auto leaf = at::ones({2}).set_requires_grad(true);
  auto step = capture([&](const at::Tensor& x) {
    auto hidden = leaf * x;
    hidden.register_hook([](const at::Tensor& gradient) { return gradient + 1; });
    hidden.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
    return torch::autograd::grad({hidden.sum()}, {leaf}).front();
  });
  for (int i = 1; i < 5; ++i) EXPECT_TRUE(at::equal(step(at::full({2}, 1.0 * i)), at::full({2}, 4.0 * i)));
}

TEST(CaptureRows, Gc40HooksOfParametersAreReplayedAndGuarded) {
  auto net = filled_linear(4, 2);
  auto step = capture(
      [&](const at::Tensor& x) {
        net->zero_grad();
        net->forward(x).sum().backward();
        return net->bias.grad() * 1;
      },
      {.watch = {net}});
  const auto x = at::ones({3, 4});
  const auto call = [&] {
    at::Tensor result;
    for (int i = 0; i < 4; ++i) result = step(x);
    return result[0].item<float>();
  };
  EXPECT_EQ(call(), 3);
  const auto number = net->bias.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
  EXPECT_EQ(call(), 6);
  EXPECT_THAT(step.explain(), HasSubstr("a backward hook of bias was registered or removed"));
  net->bias.register_hook([](const at::Tensor& gradient) { return gradient + 1; });
  EXPECT_EQ(call(), 7);
  net->bias.remove_hook(number);
  EXPECT_EQ(call(), 4);
}

/// Whether torch::autograd::grad() runs hooks of the tensors it is asked for depends on libtorch's version: eager mode
/// is the measure.
TEST(CaptureRows, Gc40HooksOfArguments) {
  const auto gradient_of = [](const at::Tensor& x) { return torch::autograd::grad({(x * x).sum()}, {x}).front(); };
  auto step = capture([&](const at::Tensor& x) {
    x.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    return gradient_of(x);
  });
  for (int i = 1; i < 6; ++i) {
    const auto make = [i] { return at::full({2}, 1.0 * i).set_requires_grad(true); };
    const auto twin = make();
    twin.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    expect_same_bits(step(make()), gradient_of(twin), "with a hook that the step registers");
  }
  EXPECT_EQ(step.recordings(), 1U);
  // Hooks that an argument has before the call are part of the recording that was made with them.
  auto plain = capture(gradient_of);
  const auto hooked = at::ones({2}).set_requires_grad(true);
  hooked.register_hook([](const at::Tensor& gradient) { return gradient * 5; });
  const auto bare = at::ones({2}).set_requires_grad(true);
  for (const auto& x : {hooked, bare, hooked}) {
    for (int i = 0; i < 3; ++i) expect_same_bits(plain(x), gradient_of(x), plain.explain());
  }
  EXPECT_EQ(plain.recordings(), 2U);
  EXPECT_THAT(plain.explain(), HasSubstr("argument 1 has other backward hooks"));
}

TEST(CaptureRows, Gc40GradientsOfArgumentsAreRefused) {
  auto step = capture([](const at::Tensor& x) {
    auto loss = (x * x).sum();
    loss.backward();
    return loss;
  });
  const auto x = at::ones({2}).set_requires_grad(true);
  EXPECT_ERROR(CaptureError, step(x), "torch::autograd::grad()");
  x.mutable_grad() = at::ones({2});
  EXPECT_ERROR(CaptureError, step(x), "tensor 1 of the arguments") << "accumulated in place";
}

TEST(CaptureRows, Gc40OpaqueHooksRunInEveryReplay) {
  auto net = filled_linear(4, 2);
  std::vector<float> captured;
  std::vector<float> eager;
  std::vector<float>* log = nullptr;
  const auto body = [&](const at::Tensor& x) {
    net->zero_grad();
    auto hidden = net->forward(x);
    hidden.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
    hidden.register_hook(opaque_hook("sum", [&](const at::Tensor& gradient) {
      log->push_back(gradient.sum().item<float>());
      return at::Tensor();
    }));
    hidden.register_hook(opaque_hook("half", [&](const at::Tensor& gradient) {
      return gradient.sum().item<float>() > 0 ? gradient * 0.5 : gradient * 0.25;  // the host decides
    }));
    hidden.register_hook(opaque_hook("in place", [&](at::Tensor gradient) { return gradient.add_(1); }));
    hidden.register_hook([](const at::Tensor& gradient) { return gradient + 1; });
    hidden.pow(3).sum().backward();
    return net->weight.grad() * 1;
  };
  int runs = 0;
  auto step = capture(
      [&](const at::Tensor& x) {
        ++runs;
        return body(x);
      },
      {.watch = {net}});
  Numbers numbers(1);
  for (int i = 0; i < 12; ++i) {
    const auto x = numbers({3, 4});
    log = &captured;
    const auto result = step(x);
    log = &eager;
    expect_same_bits(result, body(x), "step " + std::to_string(i));
  }
  EXPECT_EQ(runs, 3) << step.explain();
  EXPECT_EQ(captured, eager);
  EXPECT_EQ(captured.size(), 12U);
  EXPECT_EQ(count_nodes(step.graph(), GraphNode::Kind::host), 3U) << step.graph();
  EXPECT_EQ(count_nodes(step.graph(), "aten::_local_scalar_dense"), 0U);
  EXPECT_THAT(to_string(step.graph()), HasSubstr("half"));
}

TEST(CaptureRows, Gc40OpaqueFunctionsStayWhatPassesDoWithTheRest) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    int calls = 0;
    const auto body = [&](const at::Tensor& x) {
      const auto a = x * 1;
      const auto b = x * 2;
      const auto first = group->all_reduce(a, {.async_op = true});
      const auto second = group->all_reduce(b, {.async_op = true});
      first.wait();
      second.wait();
      return opaque_call("sum",
                         [&](const auto& inputs) {
                           ++calls;
                           return std::vector{inputs[0] + inputs[1], at::Tensor()};
                         },
                         {a, b})
          .front();
    };
    auto step = capture(body);
    Numbers numbers(group->rank());
    for (int i = 0; i < 6; ++i) {
      const auto x = numbers({3});
      calls = 0;
      const auto result = step(x);
      EXPECT_EQ(calls, 1) << "in step " << i;
      expect_same_bits(result, body(x), std::to_string(i));
    }
    EXPECT_EQ(count_nodes(step.graph(), GraphNode::Kind::host), 1U) << step.graph();
  });
}

/// The step has an opaque function, "shaper", which calls the hook. That has returned a new tensor of sizes [2, 3] so
/// far; whatever else it returns in a replay is refused.
template <class Step>
void expect_other_results_refused(Step& step, const at::Tensor& x, TensorHook& hook) {
  const auto expect_refusal = [&](TensorHook other, const std::string& text) {
    hook = std::move(other);
    const auto message = message_of<AssertionError>([&] { step(x); });
    EXPECT_THAT(message, HasSubstr("\"shaper\""));
    EXPECT_THAT(message, HasSubstr(text));
    EXPECT_THAT(message, HasSubstr("f32[2, 3] with strides [3, 1] when the step was recorded"));
  };
  expect_refusal([](const at::Tensor& gradient) { return gradient.sum(0) * 2; }, "f32[3]");
  expect_refusal([](const at::Tensor& gradient) { return gradient.to(at::kDouble); }, "f64[2, 3]");
  expect_refusal([](const at::Tensor& gradient) { return gradient.t().contiguous().t(); }, "strides [1, 2]");
  expect_refusal([](const at::Tensor& gradient) { return gradient; }, "its argument 1");
  expect_refusal([](const at::Tensor&) { return at::Tensor(); }, "no tensor");
}

TEST(CaptureRows, Gc39OpaqueFunctionsMustReturnWhatTheyReturnedBefore) {
  const auto leaf = at::ones({2, 3}).set_requires_grad(true);
  TensorHook hook = [](const at::Tensor& gradient) { return gradient * 2; };
  auto step = capture([&](const at::Tensor& x) {
    auto hidden = leaf * x;
    const auto gradient = torch::autograd::grad({hidden.sum()}, {hidden}).front();
    return opaque_call("shaper", [&](const auto& inputs) { return std::vector{hook(inputs[0])}; }, {gradient}).front() +
           1;
  });
  const auto x = at::ones({2, 3});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(step(x), at::full({2, 3}, 3.0)));
  expect_other_results_refused(step, x, hook);
  hook = [](const at::Tensor& gradient) { return gradient * 4; };
  EXPECT_TRUE(at::equal(step(x), at::full({2, 3}, 5.0))) << "the next replay is as good as ever";
}

TEST(CaptureRows, Gc39OpaqueTensorHooksMustReturnWhatTheyReturnedBefore) {
  const auto leaf = at::ones({2, 3}).set_requires_grad(true);
  TensorHook hook = [](const at::Tensor& gradient) { return gradient * 2; };
  int runs = 0;
  auto step = capture([&](const at::Tensor& x) {
    ++runs;
    auto hidden = leaf * x;
    hidden.register_hook(opaque_hook("shaper", [&](const at::Tensor& gradient) { return hook(gradient); }));
    return torch::autograd::grad({hidden.pow(2).sum()}, {leaf}).front();
  });
  const auto x = at::ones({2, 3});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(step(x), at::full({2, 3}, 4.0)));
  expect_other_results_refused(step, x, hook);
  hook = [](const at::Tensor& gradient) { return gradient * 4; };
  EXPECT_TRUE(at::equal(step(x), at::full({2, 3}, 8.0))) << "the next replay is as good as ever";
  EXPECT_EQ(runs, 2) << step.explain();
}

TEST(CaptureRows, Gc39OpaqueModuleHooksMustReturnWhatTheyReturnedBefore) {
  for (const bool is_before_the_module : {true, false}) {
    auto net = filled_linear(3, 3);
    HookedModule hooked(net);
    TensorHook hook = [](const at::Tensor& gradient) { return gradient * 2; };
    const BackwardHookOptions options{.is_opaque = true, .name = "shaper"};
    if (is_before_the_module) {
      hooked.register_backward_pre_hook(
          [&](torch::nn::Module&, const Gradients& outputs) -> std::optional<Gradients> {
            return Gradients{hook(outputs[0])};
          },
          options);
    } else {
      hooked.register_backward_hook(
          [&](torch::nn::Module&, const Gradients& inputs, const Gradients&) -> std::optional<Gradients> {
            return Gradients{hook(inputs[0])};
          },
          options);
    }
    const auto leaf = at::ones({3}).set_requires_grad(true);
    int runs = 0;
    auto step = capture(
        [&](const at::Tensor& x) {
          ++runs;
          return torch::autograd::grad({hooked.forward(leaf * x).pow(2).sum()}, {leaf}).front();
        },
        {.watch = {net, hooked}});
    const auto x = at::ones({2, 3});
    const auto first = step(x);
    for (int i = 0; i < 3; ++i) expect_same_bits(step(x), first, "call " + std::to_string(i));
    expect_other_results_refused(step, x, hook);
    hook = [](const at::Tensor& gradient) { return gradient * 4; };
    expect_same_bits(step(x), first * 2, "the next replay is as good as ever");
    EXPECT_EQ(runs, 2) << step.explain();
  }
}

/// What a hook says when it is called.
ModuleHook named_hook(std::vector<std::string>& log, std::string name, double factor) {
  return [&log, name, factor](torch::nn::Module& module, const Gradients& inputs,
                              const Gradients& outputs) -> std::optional<Gradients> {
    EXPECT_NE(dynamic_cast<torch::nn::LinearImpl*>(&module), nullptr);
    EXPECT_EQ(inputs.size(), 1U);
    EXPECT_EQ(outputs.size(), 1U);
    log.push_back(name);
    if (factor == 1) return std::nullopt;
    return Gradients{inputs[0] * factor + outputs[0].sum()};
  };
}

TEST(CaptureRows, Gc39ModuleHooksRunInOrderAndReplaceGradients) {
  for (const bool is_opaque : {false, true}) {
    auto net = filled_linear(4, 2);
    HookedModule hooked(net);
    std::vector<std::string> log;
    hooked.register_backward_pre_hook(
        [&](torch::nn::Module&, const Gradients& outputs) -> std::optional<Gradients> {
          log.emplace_back("first");
          return Gradients{outputs[0] * 3};
        },
        {.is_opaque = is_opaque, .name = "triple"});
    hooked.register_backward_pre_hook(
        [&](torch::nn::Module&, const Gradients& outputs) -> std::optional<Gradients> {
          log.emplace_back("second");
          return Gradients{outputs[0] + 1};
        },
        {.is_opaque = is_opaque, .name = "add"});
    hooked.register_backward_hook(named_hook(log, "third", 1), {.is_opaque = is_opaque});
    const auto number = hooked.register_backward_hook(named_hook(log, "no", 7), {.is_opaque = is_opaque});
    hooked.register_backward_hook(named_hook(log, "fourth", 2), {.is_opaque = is_opaque});
    hooked.remove_hook(number);
    EXPECT_ERROR(KeyError, hooked.remove_hook(number), "no hook");

    const auto leaf = at::ones({4}).set_requires_grad(true);
    const auto body = [&](const at::Tensor& x) {
      const auto loss = hooked.forward(leaf * x).pow(2).sum();
      const auto gradients = torch::autograd::grad({loss}, {leaf, net->weight});
      return gradients[0].sum() + gradients[1];
    };
    // What hooks should have done.
    const auto expected = [&](const at::Tensor& x) {
      const auto y = net->forward(leaf * x);
      const auto of_output = (2 * y * 3 + 1).detach();
      const auto of_input = (at::mm(of_output, net->weight) * 2 + of_output.sum()).detach();
      return ((of_input * x).sum(0).sum() + at::mm(of_output.t(), (leaf * x))).detach();
    };
    auto step = capture(body, {.watch = {net, hooked}});
    Numbers numbers(2);
    const int steps_before = 6;
    for (int i = 0; i < steps_before; ++i) {
      const auto x = numbers({3, 4});
      const auto result = step(x);
      EXPECT_TRUE(at::allclose(result, expected(x), 1e-4, 1e-4)) << i;
      if (i == 0) {
        EXPECT_THAT(log, ElementsAre("first", "second", "third", "fourth"));
      }
    }
    EXPECT_EQ(log.size(), is_opaque ? 4U * steps_before : 4U * 2) << "inlined hooks run while the step is recorded";
    EXPECT_EQ(count_nodes(step.graph(), GraphNode::Kind::host), is_opaque ? 4U : 0U) << step.graph();
    expect_parity(body, {net, hooked});

    // One more hook is another recording.
    const auto recordings = step.recordings();
    hooked.register_backward_hook(named_hook(log, "late", 0));
    step(numbers({3, 4}));
    EXPECT_EQ(step.recordings(), recordings + 1);
    EXPECT_THAT(step.explain(), HasSubstr("a backward hook of a module was registered"));
    EXPECT_EQ(log.back(), "late");
  }
}

TEST(CaptureRows, Gc39ModuleHooksWithoutGradientsOfInputs) {
  auto net = filled_linear(4, 2);
  HookedModule hooked(net);
  int calls = 0;
  hooked.register_backward_hook(
      [&](torch::nn::Module&, const Gradients& inputs, const Gradients& outputs) -> std::optional<Gradients> {
        ++calls;
        EXPECT_FALSE(inputs.at(0).defined());
        EXPECT_TRUE(outputs.at(0).defined());
        return std::nullopt;
      },
      {.is_opaque = true, .name = "count"});
  hooked.register_backward_pre_hook(
      [](torch::nn::Module&, const Gradients&) -> std::optional<Gradients> { return Gradients(3); });
  auto step = capture(
      [&](const at::Tensor& x) {
        net->zero_grad();
        hooked.forward(x).sum().backward();
        return net->bias.grad() * 1;
      },
      {.watch = {net, hooked}});
  EXPECT_ERROR(ValueError, step(at::ones({3, 4})), "returned 3 gradients for 1");
  hooked.remove_hook(1);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(step(at::ones({3, 4}))[0].item<float>(), 3);
  EXPECT_EQ(calls, 6);
}

TEST(HostArguments, MayBeNumbersThatBecomeTensors) {
  double factor = 1;
  int runs = 0;
  auto step = capture([&](const at::Tensor& x) {
    ++runs;
    const HostArgument other("other", [&] { return c10::Scalar(factor); });
    return (x * other.value()).add(x);
  });
  auto divides = capture([&](const at::Tensor& x) {
    const HostArgument other("other", [&] { return c10::Scalar(factor); });
    const auto y = x.clone();
    return y.div_(other.value());
  });
  // An operator that has no form for numbers: libtorch makes a tensor of it.
  double divisor = 0;
  auto floors = capture([&](const at::Tensor& x) {
    const HostArgument other("other", [&] { return c10::Scalar(++divisor); });
    return x.floor_divide(other.value());
  });
  for (int i = 1; i < 8; ++i) {
    factor = i < 3 ? 1 : 1.0 * i;  // it does not change before the step is replayed
    EXPECT_TRUE(at::equal(step(at::ones({2})), at::full({2}, factor + 1))) << i;
    EXPECT_TRUE(at::equal(divides(at::ones({2})), at::ones({2}) / factor)) << i;
    EXPECT_TRUE(at::equal(floors(at::full({2}, 20.0)), at::full({2}, std::floor(20.0 / i)))) << i;
  }
  EXPECT_EQ(runs, 2);
}

TEST(HostArguments, AreRefusedWhereBackwardNeedsThem) {
  const auto leaf = at::ones({2}).set_requires_grad(true);
  auto step = capture([&](const at::Tensor& x) {
    const HostArgument other("other", [] { return c10::Scalar(2.0); });
    return torch::autograd::grad({((leaf + x) * other.value()).sum()}, {leaf}).front();
  });
  EXPECT_ERROR(CaptureError, step(at::ones({2})), "backward may need the number");
}

}  // namespace
}  // namespace cohort::test
