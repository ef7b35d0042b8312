// SPDX-License-Identifier: BSD-3-Clause
//
// The parts of a replay as a CUDA graph that need no GPU: what is in the graph and what comes after it, small updates
// that become operators on lists, and the numbers of the host. tests/torch/gpu/capture_gpu_test.cpp has the rest.
#include "torch/capture/graph_partition.h"

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "torch/capture/batch_updates.h"
#include "torch/capture/host_part.h"
#include "torch/capture/instruction_name.h"
#include "torch/capture/recorder.h"
#include "torch/capture/replay.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using namespace cohort::recording;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Tensors = std::vector<at::Tensor>;

Program record(const Tensors& arguments, const std::function<Tensors()>& step) {
  Recorder recorder(arguments, {}, {.on_refusal = Recorder::OnRefusal::throws, .source_lines = false});
  Tensors results;
  {
    const RecordingScope scope(recorder);
    results = step();
  }
  return recorder.finish(results);
}

Tensors replay(Program program, const Tensors& arguments) {
  return Replayer(std::make_shared<const Program>(std::move(program))).run(arguments, {});
}

std::vector<std::string> names(const Program& program, const std::vector<std::size_t>& instructions) {
  std::vector<std::string> names;
  for (const auto i : instructions) names.push_back(name_of(program.instructions[i]));
  return names;
}

std::vector<bool> direct(const Program& program, const std::string& name) {
  std::vector<bool> is_direct;
  for (const auto& each : program.instructions) is_direct.push_back(name_of(each) == name);
  return is_direct;
}

TEST(GraphPartition, PutsWhatDependsOnTheTailThereToo) {
  const auto x = at::ones({4});
  auto weight = at::full({4}, 3.0F);
  const auto program = record({x}, [&] {
    auto scaled = x.mul(2);           // direct
    auto independent = x.add(1);      // in the graph
    auto dependent = scaled.sub(1);   // after scaled
    weight.mul_(independent);         // in the graph
    scaled.add_(weight);              // writes what is in the tail
    auto view = weight.view({2, 2});  // only looks
    weight.add_(1);                   // writes what the tail reads
    return Tensors{independent, dependent, scaled, view};
  });
  const auto parts = partition(program, direct(program, "aten::mul.Scalar"));
  EXPECT_THAT(names(program, parts.graph), ElementsAre("aten::add.Scalar", "aten::mul_.Tensor", "aten::view"));
  EXPECT_THAT(names(program, parts.tail),
              ElementsAre("aten::mul.Scalar", "aten::sub.Scalar", "aten::add_.Tensor", "aten::add_.Scalar"));

  auto ordered = program;
  ordered.instructions.clear();
  for (const auto& part : {parts.graph, parts.tail}) {
    for (const auto i : part) ordered.instructions.push_back(program.instructions[i]);
  }
  const auto before = weight.clone();
  const auto expected = replay(program, {x});
  const auto after = weight.clone();
  weight.copy_(before);
  const auto results = replay(ordered, {x});
  EXPECT_TRUE(weight.equal(after));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(results[i].equal(expected[i])) << i;
}

TEST(GraphPartition, KeepsTheOrderOfRandomNumbers) {
  const auto x = at::ones({4});
  const auto program = record({x}, [&] {
    auto a = at::bernoulli(x.mul(0.5), 0.5);
    auto b = at::bernoulli(x, 0.5);
    return Tensors{a, b};
  });
  const auto parts = partition(program, direct(program, "aten::mul.Scalar"));
  EXPECT_THAT(names(program, parts.graph), Each(Not(HasSubstr("bernoulli"))));
  const auto tail = names(program, parts.tail);
  EXPECT_EQ(
      std::count_if(tail.begin(), tail.end(), [](const auto& name) { return name.find("bernoulli") < name.size(); }),
      2);
}

TEST(GraphPartition, KeepsTheOrderOnAGroupAndCollectivesWithTheirWaits) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto x = at::ones({4});
    auto y = at::ones({4});
    auto z = at::ones({4});
    const auto program = record({x}, [&] {
      auto first = x.mul(2);
      group->all_reduce(buffer_of(first));
      const auto work = group->all_reduce(buffer_of(y), {.async_op = true});
      z.add_(1);
      work.wait();
      return Tensors{first, z};
    });
    const auto parts = partition(program, direct(program, "aten::mul.Scalar"));
    EXPECT_THAT(names(program, parts.graph), ElementsAre("aten::add_.Scalar"));
    EXPECT_THAT(names(program, parts.tail), ElementsAre("aten::mul.Scalar", "all_reduce", "all_reduce", "wait"));
    EXPECT_THAT(obstacle(program, program.instructions[1]), HasSubstr("on the cpu"));
  });
}

Tensors tensors(int count, float value) {
  Tensors all;
  for (int i = 0; i < count; ++i) all.push_back(at::full({3 + i}, value + static_cast<float>(i)));
  return all;
}

Tensors clones(const Tensors& all) {
  Tensors clones;
  for (const auto& each : all) clones.push_back(each.clone());
  return clones;
}

TEST(BatchedUpdates, AreOneOperatorForManyTensorsWithTheSameBits) {
  auto weights = tensors(5, 0.3F);
  auto moments = tensors(5, 0.7F);
  const auto gradients = tensors(5, 0.11F);
  const auto program = record({}, [&] {
    Tensors results;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      moments[i].mul_(0.9).add_(gradients[i], 0.1);
      weights[i].addcmul_(moments[i], gradients[i], i == 4 ? 2 : 1);
      results.push_back(moments[i].sqrt());
    }
    weights[0].mul_(0.9);                 // other tensors than the moments, and after their own updates
    results.push_back(weights[1].exp());  // after three of the batches
    return results;
  });
  std::vector<NumberedInstruction> numbered;
  for (const auto& each : program.instructions) numbered.push_back({.instruction = &each});
  auto batched = program;
  batched.instructions = batch_updates(program, numbered);
  std::vector<std::size_t> all(batched.instructions.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  EXPECT_THAT(names(batched, all),
              ElementsAre("aten::_foreach_mul_.Scalar", "aten::_foreach_add_.List", "aten::_foreach_addcmul_.Scalar",
                          "aten::exp", "aten::_foreach_sqrt", "aten::addcmul_", "aten::mul_.Scalar"));

  const auto weights_before = clones(weights);
  const auto moments_before = clones(moments);
  const auto expected = replay(program, {});
  const auto weights_after = clones(weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i].copy_(weights_before[i]);
    moments[i].copy_(moments_before[i]);
  }
  const auto results = replay(batched, {});
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(weights[i].equal(weights_after[i])) << i;
  }
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(results[i].equal(expected[i])) << i;
}

TEST(BatchedUpdates, HaveOneNumberOfTheHost) {
  auto weights = tensors(4, 0.3F);
  const auto gradients = tensors(4, 0.11F);
  double rate = -0.5;
  const auto program = record({}, [&] {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const HostArgument alpha("alpha", [&rate] { return c10::Scalar(rate); });
      weights[i].add_(gradients[i], alpha.value());
    }
    return Tensors();
  });
  std::vector<NumberedInstruction> numbered;
  for (const auto& each : program.instructions) numbered.push_back({.instruction = &each, .numbers = {0}});
  auto batched = program;
  batched.instructions = batch_updates(program, numbered);
  EXPECT_EQ(batched.instructions.size(), 1U);
  numbered[3].numbers = {1};
  EXPECT_EQ(batch_updates(program, numbered).size(), 2U);
  rate = 0.25;
  const auto expected = weights[2].add(gradients[2], 0.25);
  replay(batched, {});
  EXPECT_TRUE(weights[2].equal(expected));
}

TEST(HostParts, RunActionsAndNumbersInTheirOrder) {
  auto x = at::zeros({2});
  double number = 0;
  const auto program = record({}, [&] {
    for (int i = 0; i < 2; ++i) {
      on_host([&number] { ++number; });
      const HostArgument alpha("alpha", [&number] { return c10::Scalar(number); });
      x.add_(x, alpha.value());
    }
    return Tensors();
  });
  HostPart host(program);
  ASSERT_EQ(host.size(), 2U);
  EXPECT_EQ(host.first_number(3), 1U);
  for (int i = 1; i < 4; ++i) {
    host.run();
    EXPECT_EQ(host.source(0)().toDouble(), 2 * i + 1);
    EXPECT_EQ(host.number(1).toDouble(), 2 * i + 2);
  }
}

/// As autograd computes gradients on CUDA: on a thread to which libtorch carries its thread-local state.
TEST(Capture, SeesWhatThreadsOfAutogradIssue) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto step = capture([&](const at::Tensor& x) {
      auto y = x * 2;
      const at::ThreadLocalState state;
      std::thread engine([&] {
        const at::ThreadLocalStateGuard carried(state);
        group->all_reduce(buffer_of(y), {.async_op = true}).wait();
      });
      engine.join();
      return y + 1;
    });
    for (int i = 0; i < 5; ++i) {
      const auto x = at::full({3}, static_cast<float>(i + group->rank()));
      EXPECT_TRUE(step(x).equal(at::full({3}, static_cast<float>(4 * i + 3)))) << i;
    }
    EXPECT_THAT(step.explain(), HasSubstr("replayed 3 times"));
  });
}

}  // namespace
}  // namespace cohort::test
