// SPDX-License-Identifier: BSD-3-Clause
//
// Random steps of pure, in-place, view, random and collective operators and of what the host does: with all passes they
// compute what they do in eager mode, to the bit.
#include <cohort/torch/functional.h>
#include <cohort/torch/tensor.h>

#include <random>

#include "torch/capture/passes_support.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

constexpr int programs = 150;
constexpr int operators = 24;

/// One step of a seed: the same operators at each call and on each rank.
class RandomStep {
 public:
  RandomStep(std::uint64_t seed, ProcessGroupPtr group, ProcessGroupPtr other)
      : seed_(seed),
        group_(std::move(group)),
        other_(std::move(other)),
        state_(at::full({4, 3}, 0.5)),
        generator_(at::detail::createCPUGenerator(seed + static_cast<std::uint64_t>(group_->rank()))),
        count_(std::make_shared<int>(0)) {}

  Tensors operator()(const at::Tensor& x) {
    choices_.seed(seed_);
    wholes_ = {x + 0, x.sin(), state_};
    rows_ = {wholes_[0].select(0, 1), state_.select(0, 2)};
    flights_.clear();
    for (int i = 0; i < operators; ++i) apply(choose(15));
    for (auto& [work, tensor] : flights_) land(work, tensor);
    return {wholes_[choose(wholes_.size())] * 1, wholes_.back() * 1, rows_.back() + 1, state_};
  }

 private:
  std::size_t choose(std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(choices_); }
  const at::Tensor& whole() { return wholes_[choose(wholes_.size())]; }
  const at::Tensor& row() { return rows_[choose(rows_.size())]; }
  void add(const at::Tensor& tensor) { wholes_.push_back(tensor); }
  const ProcessGroupPtr& any_group() { return choose(4) == 0 ? other_ : group_; }
  /// This rank's, or the other one's.
  at::Tensor part_of(const at::Tensor& gathered) {
    const auto rank = choose(2) == 0 ? group_->rank() : 1 - group_->rank();
    return functional::wait_tensor(gathered).narrow(0, 4 * rank, 4).tanh();
  }
  void land(const Work& work, const at::Tensor& tensor) {
    work.wait();
    add(tensor.tanh());
  }

  void apply(std::size_t kind) {
    switch (kind) {
      case 0:
        return add(whole().sin());
      case 1:
        return add((whole() + whole()).tanh());
      case 2:
        return add((whole() * row()).tanh());
      case 3:
        whole().mul_(0.5);
        return;
      case 4:
        row().add_(0.25);
        return;
      case 5:
        rows_.push_back(whole().select(0, static_cast<std::int64_t>(choose(4))));
        return;
      case 6:
        whole().view({-1}).narrow(0, static_cast<std::int64_t>(choose(6)), 6).sub_(0.125);
        return;
      case 7:
        return add(whole() + at::rand({4, 3}, generator_));
      case 8: {
        on_host([count = count_] { ++*count; });
        const HostArgument alpha("alpha", [count = count_] { return 0.5 / *count; });
        return add(at::add(whole(), whole(), alpha.value()).tanh());
      }
      case 9:
        return add(functional::wait_tensor(functional::all_reduce(whole(), "avg", any_group())));
      case 10:
        return add(part_of(functional::all_gather_tensor(choose(2) == 0 ? whole().clone() : state_, 0, group_)));
      case 11: {
        auto tensor = whole();
        group_->all_reduce(tensor, {.op = ReduceOp::avg()});
        return;
      }
      case 12: {
        auto sum = whole() + 1;
        const auto work = group_->all_reduce(sum, {.async_op = true});
        flights_.emplace_back(work, sum);
        return;
      }
      case 13: {
        const auto shard = functional::reduce_scatter_tensor(whole(), "avg", 0, group_);
        return add(functional::wait_tensor(functional::all_gather_tensor(shard, 0, group_)));
      }
      default:
        if (flights_.empty()) return;
        land(flights_.front().first, flights_.front().second);
        flights_.erase(flights_.begin());
        return;
    }
  }

  std::uint64_t seed_;
  ProcessGroupPtr group_;
  ProcessGroupPtr other_;
  at::Tensor state_;
  at::Generator generator_;
  std::shared_ptr<int> count_;
  std::mt19937_64 choices_;
  Tensors wholes_;  // of sizes 4 x 3
  Tensors rows_;    // views of some of them
  std::vector<std::pair<Work, at::Tensor>> flights_;
};

TEST(RandomSteps, ComputeTheSameWithAllPasses) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto other = group->split_group({0, 1});
    std::size_t recorded = 0;
    std::size_t optimized = 0;
    for (std::uint64_t seed = 0; seed < programs && !testing::Test::HasFailure(); ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      const MakeStep make = [&] { return RandomStep(seed, group, other); };
      const auto runs = compare_runs(make, all_passes, {4, 3}, group->rank());
      recorded += runs.recorded.nodes.size();
      optimized += runs.optimized.nodes.size();
    }
    EXPECT_LT(optimized, recorded);
  });
}

}  // namespace
}  // namespace cohort::test
