// SPDX-License-Identifier: BSD-3-Clause
//
// cohort::optim in captured steps: what changes from step to step changes in replays too.
#include <ATen/ATen.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/lr_schedule.h>
#include <cohort/torch/optim.h>

#include <sstream>

#include "torch/capture/optimizer_rules.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

/// Parameter 2 has no gradient.
at::Tensor loss_of(const Tensors& parameters, const at::Tensor& x) {
  at::Tensor loss = at::zeros({}, x.options());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (i != 2) loss = loss + at::sin(parameters[i] * static_cast<double>(i + 1) + x).sum();
  }
  return loss;
}

class CapturedOptimizers : public testing::TestWithParam<Rule> {};

INSTANTIATE_TEST_SUITE_P(All, CapturedOptimizers, testing::ValuesIn(all_rules()),
                         [](const auto& each) { return each.param.name; });

/// The schedule steps inside of the captured step, or after it.
TEST_P(CapturedOptimizers, HaveTheBitsOfLibtorchsOverFiftySteps) {
  for (const bool is_inside : {true, false}) {
    for (const bool set_to_none : {true, false}) {
      auto mine = GetParam().make(true, at::kFloat);
      auto theirs = GetParam().make(false, at::kFloat);
      const auto factor = optim::warm_up(5, optim::cosine(40, 0.1));
      optim::LambdaLR schedule(*mine.optimizer, factor);
      optim::LambdaLR their_schedule(*theirs.optimizer, factor);
      auto step = capture(
          [&](const at::Tensor& x) {
            optim::zero_grad(*mine.optimizer, set_to_none);
            auto loss = loss_of(mine.parameters, x);
            loss.backward();
            mine.optimizer->step();
            if (is_inside) schedule.step();
            return loss;
          },
          {.watch = {*mine.optimizer}});
      for (int i = 0; i < 50; ++i) {
        const auto x = at::scalar_tensor(i, at::kFloat);
        libtorchs_zero_grad(*theirs.optimizer, set_to_none);
        const auto expected = loss_of(theirs.parameters, x);
        expected.backward();
        theirs.optimizer->step();
        their_schedule.step();
        const auto loss = step(x);
        if (!is_inside) schedule.step();
        ASSERT_EQ(bits_of(loss), bits_of(expected)) << "step " << i;
        ASSERT_TRUE(same_bits(mine.parameters, theirs.parameters)) << "step " << i;
      }
      expect_same_state(*mine.optimizer, *theirs.optimizer);
      // One of the first step, before which there were no gradients: rates and counts need no new one.
      EXPECT_EQ(step.recordings(), 2U) << step.explain();
      EXPECT_NE(step.explain().find("recorded 2 times, replayed 47 times"), std::string::npos) << step.explain();
    }
  }
}

TEST(CapturedOptimizer, GoesOnFromAnArchive) {
  const auto parameter = at::ones({3}).set_requires_grad(true);
  const auto expected = at::ones({3}).set_requires_grad(true);
  optim::AdamW mine({parameter}, 0.1);
  torch::optim::AdamW theirs({expected}, 0.1);
  const auto body = [](torch::optim::Optimizer& optimizer, const at::Tensor& of, const at::Tensor& x) {
    optim::zero_grad(optimizer);
    auto loss = (of * x).sin().sum();
    loss.backward();
    optimizer.step();
    return loss;
  };
  auto step = capture([&](const at::Tensor& x) { return body(mine, parameter, x); }, {.watch = {mine}});
  // Nothing is watched, and no gradient is left.
  auto careless = capture([&](const at::Tensor& x) {
    auto loss = body(mine, parameter, x);
    optim::zero_grad(mine);
    return loss;
  });
  const auto x = at::ones({3});
  for (int i = 0; i < 5; ++i) step(x);
  for (int i = 0; i < 5; ++i) careless(x);
  for (int i = 0; i < 10; ++i) body(theirs, expected, x);
  EXPECT_EQ(bits_of(parameter), bits_of(expected));

  std::stringstream bytes;
  torch::serialize::OutputArchive out;
  mine.save(out);
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  mine.load(in);
  EXPECT_ERROR(Error, careless(x), "state was loaded or replaced after the step was recorded");
  for (int i = 0; i < 5; ++i) step(x);
  for (int i = 0; i < 5; ++i) body(theirs, expected, x);
  EXPECT_EQ(bits_of(parameter), bits_of(expected)) << "recorded anew";
}

}  // namespace
}  // namespace cohort::test
