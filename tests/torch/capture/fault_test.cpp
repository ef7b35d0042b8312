// SPDX-License-Identifier: BSD-3-Clause
//
// Faults in replays: what a rank gets, and how long it takes, is as in eager mode; and training goes on with the ranks
// that are left, by recording again.
#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/optim.h>
#include <cohort/torch/tensor.h>
#include <torch/nn/modules/linear.h>

#include <csignal>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/capture/oracle.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;

constexpr int victim = 2;

/// A data-parallel training, captured or not.
class Training {
 public:
  Training(const ProcessGroupPtr& group, bool is_captured) : is_captured_(is_captured), numbers_(group->rank()) {
    Numbers(3).fill(net_->parameters());
    ddp_.emplace(net_, DdpOptions{.process_group = group, .bucket_cap_mb = 1e-5});
    optimizer_.emplace(ddp_->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    body_ = [this](const at::Tensor& x) {
      ++runs_;
      optimizer_->zero_grad();
      auto loss = ddp_->forward(x).pow(2).sum();
      loss.backward();
      optimizer_->step();
      return loss;
    };
    step_.emplace(body_, CaptureOptions{.watch = {*ddp_, *optimizer_}});
  }
  // The step refers to it.
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  at::Tensor step() {
    const auto x = numbers_({5, 3});
    return is_captured_ ? (*step_)(x) : body_(x).detach();
  }
  std::vector<at::Tensor> parameters() const { return copies_of(net_->parameters()); }
  int runs() const { return runs_; }
  std::string explain() const { return step_->explain(); }

  /// Goes on without the victim.
  void continue_on(const ProcessGroupPtr& group) {
    ddp_->update_process_group(group);
    for (const auto& each : net_->parameters()) each.mutable_grad() = at::Tensor();
  }

 private:
  bool is_captured_;
  int runs_ = 0;
  Numbers numbers_;
  torch::nn::Linear net_ = torch::nn::Linear(3, 4);
  std::optional<DistributedDataParallel<torch::nn::LinearImpl>> ddp_;
  std::optional<optim::SGD> optimizer_;
  std::function<at::Tensor(const at::Tensor&)> body_;
  std::optional<Captured<std::function<at::Tensor(const at::Tensor&)>>> step_;
};

struct Failure {
  std::string type;
  std::optional<int> rank;
  friend bool operator==(const Failure&, const Failure&) = default;
  friend void PrintTo(const Failure& it, std::ostream* out) { *out << it.type << " of rank " << it.rank.value_or(-1); }
};

Failure failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return {.type = std::string(to_string(error.kind())), .rank = error.context().rank};
  } catch (const std::exception& error) {
    return {.type = error.what(), .rank = {}};
  }
  return {.type = "none", .rank = {}};
}

struct Outcome {
  Failure failure{};
  std::vector<at::Tensor> losses{};
  std::vector<at::Tensor> parameters{};
};

/// Some steps of three ranks, then the victim's fault, then steps of the two others.
Outcome live_through(const ProcessGroupPtr& group, bool is_captured, const std::function<void(ProcessGroup&)>& fault,
                     std::chrono::milliseconds patience) {
  Training training(group, is_captured);
  for (int i = 0; i < 6; ++i) training.step();
  const auto before = training.parameters();
  const auto runs = training.runs();
  group->barrier();
  Outcome outcome;
  if (group->rank() == victim) {
    fault(*group);
    return outcome;
  }
  const auto time = time_of([&] { outcome.failure = failure_of([&] { training.step(); }); });
  EXPECT_LT(time, patience);
  if (is_captured) {
    EXPECT_EQ(training.runs(), runs) << "the fault was in a replay: " << training.explain();
  }
  const auto after = training.parameters();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << "not stepped";
  const auto left = group->shrink({.excluded = {victim}, .timeout = 10s});
  EXPECT_EQ(left->size(), 2);
  training.continue_on(left);
  for (int i = 0; i < 8; ++i) outcome.losses.push_back(training.step());
  outcome.parameters = training.parameters();
  if (is_captured) {
    EXPECT_GT(training.runs(), runs) << "recorded again";
    EXPECT_LE(training.runs(), runs + 5) << "and replayed: " << training.explain();
  }
  left->barrier();
  return outcome;
}

struct Fault {
  std::string name;
  std::function<void(ProcessGroup&)> cause;
  std::string type;
  std::chrono::milliseconds timeout = 20s;
  bool stays = false;  ///< the victim does not come, but does not leave
  friend void PrintTo(const Fault& it, std::ostream* out) { *out << it.name; }
};

class FaultInReplay : public testing::TestWithParam<Fault> {};

TEST_P(FaultInReplay, IsThatOfEagerModeAndTrainingGoesOn) {
  const auto& fault = GetParam();
  std::vector<std::vector<Outcome>> outcomes(2, std::vector<Outcome>(3));
  for (const bool is_captured : {false, true}) {
    std::latch survivors(2);
    with_torch_threads(
        3,
        [&](const ProcessGroupPtr& group) {
          const auto done = [&](void*) { survivors.count_down(); };
          const std::unique_ptr<void, decltype(done)> at_end(group->rank() == victim ? nullptr : &survivors, done);
          outcomes[is_captured ? 1U : 0U][static_cast<std::size_t>(group->rank())] =
              live_through(group, is_captured, fault.cause, fault.timeout + 5s);
          if (group->rank() == victim && fault.stays) survivors.wait();
        },
        fault.timeout);
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const auto& eager = outcomes[0][rank];
    const auto& captured = outcomes[1][rank];
    EXPECT_EQ(captured.failure, eager.failure) << "rank " << rank;
    EXPECT_EQ(captured.failure.type, fault.type);
    EXPECT_EQ(captured.failure.rank, victim);
    ASSERT_EQ(captured.losses.size(), 8U);
    for (std::size_t i = 0; i < 8; ++i) expect_same_bits(captured.losses[i], eager.losses[i], "after the fault");
    for (std::size_t i = 0; i < eager.parameters.size(); ++i) {
      expect_same_bits(captured.parameters[i], eager.parameters[i], "parameter");
      expect_same_bits(captured.parameters[i], outcomes[1][0].parameters[i], "parameter of rank 0");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Replay, FaultInReplay,
    testing::Values(
        Fault{.name = "Abort", .cause = [](ProcessGroup& group) { group.abort("a scenario"); }, .type = "aborted"},
        Fault{.name = "Departure", .cause = [](ProcessGroup& group) { group.shutdown(); }, .type = "peer_lost"},
        Fault{.name = "Timeout", .cause = [](ProcessGroup&) {}, .type = "timeout", .timeout = 1s, .stays = true}),
    [](const auto& it) { return it.param.name; });

TEST(FaultInReplayOfProcesses, DeadPeersAreNamedAndTrainingGoesOn) {
  const ProcessStore store;
  std::vector<Process> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto group = join_processes(store, rank, 3, 20s);
      const auto outcome = live_through(
          group, true, [](ProcessGroup&) { ::raise(SIGKILL); }, 10s);
      EXPECT_EQ(outcome.failure, (Failure{.type = "peer_lost", .rank = victim}));
      return 0;
    });
  }
  EXPECT_EQ(ranks[0].wait(), 0);
  EXPECT_EQ(ranks[1].wait(), 0);
  EXPECT_EQ(ranks[victim].wait(), 128 + SIGKILL);
}

/// One rank alone notices: its own abort, before and while it replays.
TEST(FaultInReplayOfOneRank, AbortsAreErrorsOfTheStep) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    auto step = capture([&](const at::Tensor& x) {
      const auto y = x * 1;
      group->all_reduce(y, {.async_op = true}).wait();
      return y;
    });
    const auto x = at::ones({4});
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(step(x), at::full({4}, 2.0)));
    group->barrier();
    group->abort("enough");
    EXPECT_ERROR(AbortedError, step(x), "enough");
    EXPECT_THAT(step.explain(), testing::HasSubstr("aborted"));
  });
}

}  // namespace
}  // namespace cohort::test
