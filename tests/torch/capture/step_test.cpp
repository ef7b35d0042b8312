// SPDX-License-Identifier: BSD-3-Clause
//
// What becomes of a captured step when it cannot be captured, or fails half-way.
#include <cohort/torch/capture.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <vector>

#include "support/expect_error.h"
#include "torch/capture/oracle.h"

namespace cohort::test {
namespace {

using testing::HasSubstr;

/// Never the same number: refused when the last attempt differs, behind recordings that were accepted.
auto changing_step(double& factor, CaptureOptions options) {
  return capture(
      [&](const at::Tensor& x) {
        factor += 1;
        return std::vector<at::Tensor>{x * factor, x + 1};
      },
      std::move(options));
}

TEST(StepsThatCannotBeCaptured, RunAsTheyAreFromTheLastAttemptOn) {
  double factor = 0;
  auto step = changing_step(factor, {.max_attempts = 3, .allow_eager = true});
  const auto x = at::ones({2});
  for (int call = 1; call <= 8; ++call) {
    const auto result = step(x);
    ASSERT_EQ(result.size(), 2U);
    expect_same_bits(result[0], at::full({2}, static_cast<double>(call)), "call " + std::to_string(call));
  }
  EXPECT_EQ(step.recordings(), 0U);
  EXPECT_THAT(step.explain(), HasSubstr("changing_number"));
}

TEST(StepsThatCannotBeCaptured, SayWhyAndWhatToChange) {
  double factor = 0;
  auto step = changing_step(factor, {.max_attempts = 2});
  const auto x = at::ones({2});
  step(x);
  EXPECT_ERROR(CaptureError, step(x), "aten::mul");
  EXPECT_THAT(step.explain(), HasSubstr("The last recording failed"));
  EXPECT_THAT(step.explain(), HasSubstr("HostArgument")) << "the hint";
}

/// What is watched is looked at before the step runs.
TEST(StepsThatCannotBeCaptured, AreRefusedAgainAtTheNextCall) {
  torch::nn::Linear net(2, 2);
  torch::optim::LBFGS optimizer(net->parameters());
  int runs = 0;
  const auto body = [&](const at::Tensor& x) {
    ++runs;
    return net->forward(x);
  };
  auto step = capture(body, {.watch = {net, optimizer}});
  for (int i = 0; i < 3; ++i) EXPECT_ERROR(CaptureError, step(at::ones({1, 2})), "LBFGS");
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(step.recordings(), 0U);
  auto eager = capture(body, {.watch = {net, optimizer}, .allow_eager = true});
  for (int i = 0; i < 3; ++i) expect_same_bits(eager(at::ones({1, 2})), body(at::ones({1, 2})).detach(), "eager");
  EXPECT_EQ(runs, 6);
  EXPECT_THAT(eager.explain(), HasSubstr("LBFGS"));
}

/// A replay that fails has written what it has written, and autograd must know.
TEST(StepsThatFail, RaiseTheVersionsOfWhatTheyHaveWritten) {
  bool fails = false;
  auto step = capture([&](const at::Tensor& x) {
    x.add_(1);
    on_host([&] {
      if (fails) throw std::runtime_error("no more data");
    });
    x.add_(1);
    return x * 2;
  });
  const auto x = at::zeros({2});
  for (int i = 0; i < 3; ++i) step(x);
  const auto saved = at::ones({2}).requires_grad_();
  const auto product = saved * x;  // needs x as it is now for its backward
  fails = true;
  EXPECT_THROW(step(x), std::runtime_error);
  EXPECT_ERROR(c10::Error, product.sum().backward(), "modified by an inplace operation");
  fails = false;
  expect_same_bits(x, at::full({2}, 7.0), "three whole steps and the first half of one");
  step(x);
  expect_same_bits(x, at::full({2}, 9.0), "the next step");
}

}  // namespace
}  // namespace cohort::test
