// SPDX-License-Identifier: BSD-3-Clause
//
// What travels between the processes can be changed: a communication hook gets each bucket of gradients and gives back
// what is to be in it. Here the same training three times: as it is, with gradients that travel as bf16 (half the
// bytes), and with a hook of one's own that keeps only the largest tenth of a bucket. Start it with
//
//   cohort run -n 2 ./comm_hook
#include <cohort/cohort.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/hooks.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

using namespace std::chrono_literals;

namespace {

/// Keeps the largest elements and remembers the others for the next step (Stich et al., 2018). A hook is a function;
/// one with a memory of its own is an object with operator().
class LargestTenth {
 public:
  explicit LargestTenth(cohort::ProcessGroupPtr pg) : pg_(std::move(pg)) {}

  cohort::TensorFuture operator()(cohort::GradBucket& bucket) {
    const auto gradients = bucket.buffer() / pg_->size();
    // The first step has one bucket, later ones follow the order in which gradients come: what was remembered of
    // another layout is of no use.
    auto& left = (*left_)[bucket.index()];
    const auto all = left.defined() && left.numel() == gradients.numel() ? gradients + left : gradients;
    const auto smallest_sent = std::get<0>(all.abs().topk(std::max<std::int64_t>(1, all.numel() / 10))).min();
    const auto sent = torch::where(all.abs() >= smallest_sent, all, torch::zeros_like(all));
    left = all - sent;
    // Whoever wants to save bytes would gather indices and values; the sum of what is mostly zeros is the same.
    return cohort::all_reduce_async(*pg_, bucket.buffer().copy_(sent));
  }

 private:
  cohort::ProcessGroupPtr pg_;
  std::shared_ptr<std::map<std::size_t, torch::Tensor>> left_ =
      std::make_shared<std::map<std::size_t, torch::Tensor>>();
};

float train(const cohort::ProcessGroupPtr& pg, const cohort::CommHook& hook) {
  torch::manual_seed(5);
  const torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  cohort::DistributedDataParallel ddp(net, {.process_group = pg});
  if (hook) ddp.register_comm_hook(hook);  // one for each model, before its first step
  torch::optim::SGD optimizer(ddp.parameters(), 0.05);
  torch::manual_seed(100 + static_cast<std::uint64_t>(pg->rank()));
  float loss_now = 0;
  for (int step = 0; step < 300; ++step) {
    const auto x = torch::randn({32, 8});
    auto loss = torch::mse_loss(ddp.forward(x).squeeze(1), torch::tanh(x.sum(1)));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    loss_now = loss.item<float>();
  }
  return loss_now;
}

}  // namespace

int main() {
  try {
    at::set_num_threads(1);
    const auto pg = cohort::new_group("auto", 30s, "cpu");
    bool all_learnt = true;
    const std::pair<const char*, cohort::CommHook> hooks[] = {
        {"as it is", nullptr}, {"as bf16", cohort::hooks::bf16_compress(pg)}, {"the largest tenth", LargestTenth(pg)}};
    for (const auto& [name, hook] : hooks) {
      const auto loss = train(pg, hook);
      all_learnt = all_learnt && loss < 0.2F;
      if (pg->rank() == 0) std::cout << "loss with gradients sent " << name << ": " << loss << '\n';
    }
    return all_learnt ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "comm_hook: " << e.what() << '\n';
    return 1;
  }
}
