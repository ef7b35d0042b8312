// SPDX-License-Identifier: BSD-3-Clause
//
// What DistributedDataParallel adds to a step on one GPU, world size 1, backend nccl: 200 x Linear(256), and a
// transformer of about 150 million parameters. gpu_price.py measures PyTorch's DDP on the same models.
#include <cohort/cohort.h>
#include <cohort/torch/ddp.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

namespace {

using namespace std::chrono_literals;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Milliseconds of one step, the device idle before and after.
double timed(const std::function<void()>& step) {
  torch::cuda::synchronize();
  const auto begin = std::chrono::steady_clock::now();
  step();
  torch::cuda::synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

struct Many : torch::nn::Module {
  Many() {
    for (int i = 0; i < 200; ++i) layers->push_back(torch::nn::Linear(256, 256));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

/// Twelve layers of width 1024, as torch.nn.TransformerEncoderLayer has them.
struct Transformer : torch::nn::Module {
  Transformer() {
    const auto layer = torch::nn::TransformerEncoderLayerOptions(1024, 16).dim_feedforward(4096).dropout(0);
    encoder =
        register_module("encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, 12)));
  }
  at::Tensor forward(const at::Tensor& x) { return encoder->forward(x); }
  torch::nn::TransformerEncoder encoder{nullptr};
};

template <class Net>
void measure(const char* name, const cohort::ProcessGroupPtr& group, const at::Tensor& x) {
  const auto bare = std::make_shared<Net>();
  const auto wrapped = std::make_shared<Net>();
  bare->to(torch::kCUDA);
  wrapped->to(torch::kCUDA);
  cohort::DistributedDataParallel ddp(wrapped, {.process_group = group});
  const auto step = [&](auto& net) {
    for (auto& each : net.parameters()) each.mutable_grad() = at::Tensor();
    net.forward(x).sum().backward();
  };
  std::vector<double> bare_times;
  std::vector<double> ddp_times;
  for (int i = -5; i < 30; ++i) {
    const auto b = timed([&] { step(*bare); });
    const auto d = timed([&] { step(ddp); });
    if (i < 0) continue;
    bare_times.push_back(b);
    ddp_times.push_back(d);
  }
  std::printf("%-12s cohort: bare %.3f ms, DDP %.3f ms, price %.3f ms\n", name, median(bare_times), median(ddp_times),
              median(ddp_times) - median(bare_times));
  std::fflush(stdout);
}

}  // namespace

int main() {
  const auto group = cohort::new_group("nccl", 60s, "cuda:0", {},
                                       {.store = std::make_shared<cohort::HashStore>(), .rank = 0, .size = 1});
  measure<Many>("200 x Linear", group, torch::randn({64, 256}, torch::kCUDA));
  measure<Transformer>("transformer", group, torch::randn({128, 8, 1024}, torch::kCUDA));
  return 0;
}
