// SPDX-License-Identifier: BSD-3-Clause
//
// What changes from step to step in cohort::optim is where a recorder sees it: an observer of all operators finds
// numbers that change only in arguments for which a HostArgument stands.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/lr_schedule.h>
#include <cohort/torch/optim.h>
#include <gtest/gtest.h>

#include <sstream>

namespace cohort::test {
namespace {

/// One argument of an operator that was called.
struct SeenArgument {
  std::string place;  ///< operator and argument
  std::string value;  ///< empty for tensors
  bool has_host_function = false;
};
thread_local std::vector<SeenArgument>* seen_now = nullptr;

bool is_host_argument(const std::string& name, const c10::IValue& value) {
  for (const auto* scope = HostArgument::innermost(); scope != nullptr; scope = scope->outer()) {
    if (scope->name() == name) return value.isScalar() && value.toScalar().toDouble() == scope->value().toDouble();
  }
  return false;
}

std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& call) {
  if (seen_now == nullptr) return nullptr;
  const auto schema = call.operator_schema();
  if (!schema.has_value()) return nullptr;
  const auto inputs = call.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& name = schema->arguments()[i].name();
    std::ostringstream place;
    place << schema->operator_name() << ' ' << name;
    std::ostringstream value;
    if (!inputs[i].isTensor()) value << std::hexfloat << inputs[i];
    seen_now->push_back({place.str(), value.str(), is_host_argument(name, inputs[i])});
  }
  return nullptr;
}

std::vector<SeenArgument> seen_in(const std::function<void()>& step) {
  std::vector<SeenArgument> result;
  seen_now = &result;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(see).needsInputs(true));
  step();
  at::removeCallback(handle);
  seen_now = nullptr;
  return result;
}

struct Changes {
  std::vector<std::string> seen_by_host;  ///< where a HostArgument stands for what changed
  std::vector<std::string> unseen;
  bool are_operators_the_same = true;
};

/// Between a step and the next one.
Changes changes_of(const std::vector<SeenArgument>& before, const std::vector<SeenArgument>& after) {
  Changes result;
  result.are_operators_the_same =
      std::equal(before.begin(), before.end(), after.begin(), after.end(),
                 [](const SeenArgument& a, const SeenArgument& b) { return a.place == b.place; });
  if (!result.are_operators_the_same) return result;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].value == after[i].value) continue;
    const bool both = before[i].has_host_function && after[i].has_host_function;
    (both ? result.seen_by_host : result.unseen).push_back(before[i].place);
  }
  return result;
}

std::vector<at::Tensor> three_parameters() {
  std::vector<at::Tensor> all;
  for (const auto count : {3, 4, 5}) all.push_back(at::ones({count}).set_requires_grad(true));
  return all;
}

/// Steps with gradients that stay the same and a learning rate that changes.
template <class Optimizer>
Changes changes_between_second_and_third_step(Optimizer&& optimizer) {
  optim::LambdaLR schedule(optimizer, optim::warm_up(10, optim::cosine(20)));
  for (auto& each : optimizer.param_groups()[0].params()) each.mutable_grad() = at::full_like(each, 0.5);
  const auto step = [&] {
    optimizer.step();
    schedule.step();
  };
  step();
  const auto second = seen_in(step);
  const auto third = seen_in(step);
  EXPECT_FALSE(second.empty());
  return changes_of(second, third);
}

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

template <class Optimizer, class Options>
void expect_all_seen(Options options, std::size_t changes) {
  const auto found = changes_between_second_and_third_step(Optimizer(three_parameters(), options));
  EXPECT_TRUE(found.are_operators_the_same);
  EXPECT_EQ(found.unseen, std::vector<std::string>());
  EXPECT_EQ(found.seen_by_host.size(), 3 * changes);
}

class OptimizerChanges : public testing::Test {
 protected:
  void SetUp() override {
#ifndef NDEBUG
    // A sanitized build has a member in RecordFunction that libtorch, which is a release build, does not have.
    GTEST_SKIP() << "without NDEBUG libtorch's observers cannot be asked for an operator's arguments";
#endif
  }
};

TEST_F(OptimizerChanges, AreHostArguments) {
  expect_all_seen<optim::SGD>(SGDOptions(0.1), 1);
  expect_all_seen<optim::SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.1).dampening(0.1), 1);
  expect_all_seen<optim::SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true), 1);
  expect_all_seen<optim::Adam>(AdamOptions(0.1), 2);
  expect_all_seen<optim::Adam>(AdamOptions(0.1).amsgrad(true).weight_decay(0.1), 2);
  expect_all_seen<optim::AdamW>(AdamWOptions(0.1), 3);
  expect_all_seen<optim::AdamW>(AdamWOptions(0.1).amsgrad(true).weight_decay(0), 2);
  expect_all_seen<optim::Adagrad>(torch::optim::AdagradOptions(0.1).lr_decay(0.1), 1);
  expect_all_seen<optim::RMSprop>(torch::optim::RMSpropOptions(0.1), 1);
  expect_all_seen<optim::RMSprop>(torch::optim::RMSpropOptions(0.1).momentum(0.9).centered(true), 1);
  expect_all_seen<optim::Adadelta>(optim::AdadeltaOptions(0.1), 1);
  expect_all_seen<optim::Adamax>(optim::AdamaxOptions(0.1), 1);
  expect_all_seen<optim::Rprop>(optim::RpropOptions(0.1), 0);
}

/// The observer finds what libtorch's optimizers bake in.
TEST_F(OptimizerChanges, OfLibtorchsOptimizersAreNot) {
  const auto sgd = changes_between_second_and_third_step(torch::optim::SGD(three_parameters(), 0.1));
  EXPECT_EQ(sgd.unseen.size(), 3U);
  const auto adamw = changes_between_second_and_third_step(torch::optim::AdamW(three_parameters(), 0.1));
  EXPECT_EQ(adamw.unseen.size(), 9U);
  EXPECT_TRUE(adamw.seen_by_host.empty());
}

TEST(HostArgumentScope, NestsAndEnds) {
  EXPECT_EQ(HostArgument::innermost(), nullptr);
  double number = 1;
  {
    const HostArgument outer("alpha", [&] { return c10::Scalar(number); });
    number = 2;
    const HostArgument inner("beta", [&] { return c10::Scalar(number); });
    EXPECT_EQ(HostArgument::innermost(), &inner);
    EXPECT_EQ(inner.outer(), &outer);
    EXPECT_EQ(outer.value().toDouble(), 1) << "as it was when it was made";
    EXPECT_EQ(outer.function()().toDouble(), 2);
    EXPECT_EQ(inner.value().toDouble(), 2);
  }
  EXPECT_EQ(HostArgument::innermost(), nullptr);
}

}  // namespace
}  // namespace cohort::test
