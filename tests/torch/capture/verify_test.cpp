// SPDX-License-Identifier: BSD-3-Clause
//
// CaptureOptions::verify_every: what capture cannot see is found by recording again now and then.
#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/optim.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "torch/capture/guards_support.h"
#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(VerifiedSteps, FindANumberThatTheFunctionRefersTo) {
  double factor = 2;
  int runs = 0;
  auto step = capture(
      [&](const at::Tensor& x) {
        ++runs;
        return (x + 1) * factor;
      },
      {.verify_every = 5});
  const auto x = at::ones({2});
  for (int call = 1; call <= 7; ++call) EXPECT_TRUE(at::equal(step(x), at::full({2}, 4.0))) << call;
  EXPECT_EQ(runs, 3) << "recorded twice, and verified in call 5";
  EXPECT_THAT(step.explain(), HasSubstr("verified 1 time"));
  factor = 3;
  EXPECT_TRUE(at::equal(step(x), at::full({2}, 4.0))) << "a replay does not see it";
  EXPECT_TRUE(at::equal(step(x), at::full({2}, 4.0)));
  try {
    step(x);
    ADD_FAILURE() << "call 10 found nothing";
  } catch (const CaptureError& error) {
    EXPECT_EQ(error.reason(), CaptureRefusal::changing_number);
    EXPECT_THAT(error.refused(), AllOf(HasSubstr("operator 1, aten::mul."), HasSubstr(", argument other")));
    EXPECT_THAT(error.explanation(), HasSubstr("it was 2 in one recording and 3 in the next"));
    EXPECT_FALSE(error.hints().empty());
  }
  for (int call = 11; call <= 16; ++call) EXPECT_TRUE(at::equal(step(x), at::full({2}, 6.0))) << call;
  EXPECT_EQ(runs, 4 + 3) << "recorded twice, and verified in call 15";
}

TEST(VerifiedSteps, FindAnArgumentAFlagAndAnotherTensor) {
  const auto x = at::ones({2});
  const auto expect_found = [&](const auto& function, const auto& change, CaptureRefusal reason, const char* where) {
    auto step = capture(function, {.verify_every = 4});
    for (int call = 0; call < 3; ++call) step(x);
    change();
    try {
      step(x);
      ADD_FAILURE() << where << " was not found";
    } catch (const CaptureError& error) {
      EXPECT_EQ(error.reason(), reason) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(where));
    }
  };
  double alpha = 1;
  expect_found([&](const at::Tensor& y) { return at::leaky_relu(y, alpha); }, [&] { alpha = 2; },
               CaptureRefusal::changing_number, "operator 0, aten::leaky_relu, argument negative_slope");
  double number = 2;  // which libtorch makes a tensor of
  expect_found([&](const at::Tensor& y) { return y * c10::scalar_to_tensor(number); }, [&] { number = 3; },
               CaptureRefusal::changing_number, "operator 0, aten::mul.Tensor, argument other");
  bool is_on = false;
  expect_found([&](const at::Tensor& y) { return is_on ? y.sin() : y.cos(); }, [&] { is_on = true; },
               CaptureRefusal::changing_operators, "operator 0, aten::cos");
  expect_found([&](const at::Tensor& y) { return is_on ? y + 1 : y; }, [&] { is_on = false; },
               CaptureRefusal::changing_operators, "the end");
  auto weight = at::ones({2});
  expect_found([&](const at::Tensor& y) { return y * weight; }, [&] { weight = at::zeros({2}); },
               CaptureRefusal::host_write, "operator 0, aten::mul.Tensor, argument other");
}

TEST(VerifiedSteps, AreNotVerifiedUnlessAskedFor) {
  double factor = 2;
  auto step = capture([&](const at::Tensor& x) { return x * factor; });
  const auto x = at::ones({2});
  for (int call = 0; call < 20; ++call) {
    if (call == 3) factor = 3;
    EXPECT_TRUE(at::equal(step(x), at::full({2}, 2.0)));
  }
}

TEST(VerifiedSteps, WithEveryCallAreEagerSteps) {
  double factor = 2;
  auto step = capture([&](const at::Tensor& x) { return x * factor; }, {.verify_every = 1});
  const auto x = at::ones({2});
  for (int call = 0; call < 3; ++call) step(x);
  factor = 3;
  EXPECT_ERROR(CaptureError, step(x), "argument other");
}

using Ddp = DistributedDataParallel<torch::nn::LinearImpl>;

/// A training as it is or captured. The later batches are smaller, and those of rank 1 become so one step earlier.
std::vector<at::Tensor> trained(const ProcessGroupPtr& group, std::size_t verify_every, bool is_captured) {
  torch::nn::Linear net(3, 4);
  Numbers(7).fill(net->parameters());
  Ddp ddp(net, {.process_group = group});
  optim::AdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(0.05));
  const auto body = [&](const at::Tensor& x) {
    optimizer.zero_grad();
    const auto loss = ddp.forward(x).pow(2).mean();
    loss.backward();
    optimizer.step();
    return loss;
  };
  auto step = capture(body, {.watch = {ddp, optimizer}, .verify_every = verify_every});
  Numbers numbers(group->rank());
  std::vector<at::Tensor> losses;
  for (int i = 0; i < 20; ++i) {
    const auto x = numbers({i < 9 - group->rank() ? 5 : 4, 3});
    losses.push_back(is_captured ? step(x) : body(x).detach());
  }
  if (verify_every > 0) {
    EXPECT_THAT(step.explain(), HasSubstr("verified"));
  }
  losses.push_back(net->weight.detach());
  return losses;
}

TEST(VerifiedSteps, TrainAsOthersDo) {
  for (const int ranks : {1, 2}) {
    with_torch_threads(ranks, [](const ProcessGroupPtr& group) {
      const auto eager = trained(group, 0, false);
      for (const std::size_t every : {1U, 3U, 9U}) {
        const auto verified = trained(group, every, true);
        for (std::size_t i = 0; i < eager.size(); ++i) {
          expect_same_bits(verified[i], eager[i], std::to_string(every) + ", " + std::to_string(i));
        }
      }
    });
  }
}

TEST(VerifiedSteps, OfAllRanksThrowWhatOneHasFound) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    double factor = 2;
    auto step = capture(
        [&](const at::Tensor& x) {
          const auto y = x * factor;
          group->all_reduce(y);
          return y;
        },
        {.verify_every = 4});
    const auto x = at::ones({2});
    for (int call = 0; call < 3; ++call) step(x);
    if (group->rank() == 1) factor = 3;
    try {
      step(x);
      ADD_FAILURE() << "nothing was thrown on rank " << group->rank();
    } catch (const CaptureError& error) {
      if (group->rank() == 1) {
        EXPECT_EQ(error.reason(), CaptureRefusal::changing_number);
      } else {
        EXPECT_EQ(error.reason(), CaptureRefusal::different_ranks);
        EXPECT_THAT(error.refused(), HasSubstr("rank 1"));
      }
      EXPECT_THAT(error.what(), AllOf(HasSubstr("aten::mul."), HasSubstr(", argument other"),
                                      HasSubstr("t was 2 in one recording and 3 in the next")));
    }
    // They go on together, with what it is now.
    for (int call = 0; call < 5; ++call) EXPECT_TRUE(at::equal(step(x), at::full({2}, 7.0)));
  });
}

/// Rank 2 has no group with rank 0: rank 1, which has groups with both, passes it on.
TEST(VerifiedSteps, AreToldOfThroughOtherGroups) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    const auto low = group->split_group({0, 1});
    const auto high = group->split_group({1, 2});
    double factor = 2;
    auto step = capture(
        [&](const at::Tensor& x) {
          const auto y = x * factor;
          if (low != nullptr) low->all_reduce(y);
          if (high != nullptr) high->all_reduce(y);
          return y;
        },
        {.verify_every = 4});
    const auto x = at::ones({2});
    for (const int other : {2, 0}) {
      for (int call = 0; call < 3; ++call) step(x);
      if (group->rank() == other) factor += 1;
      EXPECT_ERROR(CaptureError, step(x), "aten::mul.");
    }
  });
}

/// A rank whose step is recorded at that call, and refused when it has ended.
TEST(VerifiedSteps, TellPeersWhatWasRefusedMeanwhile) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    double factor = 2;
    bool changes = false;
    auto step = capture(
        [&](const at::Tensor& x) {
          if (changes) factor += 1;
          const auto y = x * factor;
          group->all_reduce(y);
          return y;
        },
        {.max_attempts = 2, .verify_every = 5});
    for (int call = 0; call < 3; ++call) step(at::ones({2}));
    // Rank 1 gets other sizes from now on, which its recordings differ in as well.
    changes = group->rank() == 1;
    const auto x = changes ? at::ones({1, 2}) : at::ones({2});
    step(x);
    EXPECT_ERROR(CaptureError, step(x), "aten::mul.");
  });
}

TEST(VerifiedSteps, SayThatTheyCouldNotBeCompared) {
  torch::nn::Linear net(3, 4);
  optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  auto step = capture(
      [&](const at::Tensor& x) {
        optimizer.zero_grad();
        const auto loss = net(x).pow(2).mean();
        loss.backward();
        optimizer.step();
        return loss;
      },
      {.watch = {net, optimizer}, .verify_every = 4});
  const auto x = at::ones({2, 3});
  for (int call = 0; call < 3; ++call) step(x);
  for (auto& each : net->parameters()) {
    each.mutable_grad() = each.grad().defined() ? at::Tensor() : at::zeros_like(each);
  }
  step(x);
  EXPECT_THAT(step.explain(), HasSubstr("Not verified 1 time"));
}

}  // namespace
}  // namespace cohort::test
