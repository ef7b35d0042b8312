// SPDX-License-Identifier: BSD-3-Clause
//
// What DistributedDataParallel adds to a step on one GPU, world size 1, backend nccl: 200 x Linear(256), and a
// transformer of about 150 million parameters. gpu_price.py measures PyTorch's DDP on the same models.
#include <cohort/cohort.h>
#include <cohort/torch/ddp.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "gpu_models.h"
#include "measure/interleaved.h"
#include "measure/statistics.h"

namespace {

using namespace cohort::benchmarks;
using namespace cohort::measure;
using namespace std::chrono_literals;

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
  const auto time = [&](std::size_t which) { return timed([&] { which == 0 ? step(*bare) : step(ddp); }); };
  take_turns(2, 5, time);  // warms up
  const auto times = take_turns(2, 30, time);
  std::printf("%-12s cohort: bare %.3f ms, DDP %.3f ms, price %.3f ms\n", name, median(times[0]), median(times[1]),
              median(times[1]) - median(times[0]));
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
