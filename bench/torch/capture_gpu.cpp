// SPDX-License-Identifier: BSD-3-Clause
//
// Captured training steps on one GPU, with their optimizer, in DistributedDataParallel on nccl with one rank: eager,
// replayed by direct calls, and replayed as a CUDA graph. capture_gpu.py measures PyTorch's DDP on the same models. The
// models are 200 x Linear(256) with SGD and momentum and with AdamW, whose numbers change in each step, and a
// transformer of about 150 million parameters with AdamW.
//
//   capture_gpu_bench [--rounds N] [--memory eager|direct|graph]
//
// --memory: the most memory that the allocator had in use and reserved in steps of one kind alone.
#include <c10/cuda/CUDACachingAllocator.h>
#include <cohort/cohort.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/optim.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu_models.h"
#include "measure/interleaved.h"
#include "measure/statistics.h"

namespace {

using namespace cohort::benchmarks;
using namespace cohort::measure;
using namespace std::chrono_literals;

/// A model, its optimizer and its step: "eager", "direct" or "graph".
template <class Net, class Optimizer>
class Training {
 public:
  template <class Options>
  Training(const std::string& kind, const cohort::ProcessGroupPtr& group, const Options& options)
      : net_(on_gpu()),
        ddp_(net_, {.process_group = group}),
        optimizer_(ddp_.parameters(), options),
        captured_(cohort::capture(Step([this](const at::Tensor& x) { return eager(x); }),
                                  {.watch = {ddp_, optimizer_}, .cuda_graph = kind == "graph"})),
        is_eager_(kind == "eager") {}
  at::Tensor operator()(const at::Tensor& x) { return is_eager_ ? eager(x) : captured_(x); }
  std::string explain() const { return is_eager_ ? "" : captured_.explain(); }

 private:
  using Step = std::function<at::Tensor(const at::Tensor&)>;

  static std::shared_ptr<Net> on_gpu() {
    torch::manual_seed(1);
    auto net = std::make_shared<Net>();
    net->to(torch::kCUDA);
    return net;
  }
  at::Tensor eager(const at::Tensor& x) {
    optimizer_.zero_grad();
    auto loss = ddp_.forward(x).square().mean();
    loss.backward();
    optimizer_.step();
    return loss.detach();
  }

  std::shared_ptr<Net> net_;
  cohort::DistributedDataParallel<Net> ddp_;
  Optimizer optimizer_;
  cohort::Captured<Step> captured_;
  bool is_eager_;
};

template <class Net, class Optimizer, class Options>
void measure(const char* name, const cohort::ProcessGroupPtr& group, const Options& options, const at::Tensor& x,
             int rounds) {
  const std::array<const char*, 3> kinds{"eager", "direct", "graph"};
  std::array<std::unique_ptr<Training<Net, Optimizer>>, 3> trainings;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    trainings.at(i) = std::make_unique<Training<Net, Optimizer>>(kinds.at(i), group, options);
  }
  std::array<double, 3> losses{};
  const auto time = [&](std::size_t which) {
    at::Tensor loss;
    const auto took = timed([&] { loss = (*trainings.at(which))(x); });
    losses.at(which) = loss.item<double>();
    return took;
  };
  take_turns(3, 8, time);  // until all are replayed
  const auto times = take_turns(3, rounds, time);
  const auto eager = median(times[0]);
  std::printf("%-12s cohort: eager %.3f ms, captured %.3f ms (%.2fx), CUDA graph %.3f ms (%.2fx); losses %s\n", name,
              eager, median(times[1]), eager / median(times[1]), median(times[2]), eager / median(times[2]),
              losses[0] == losses[1] && losses[0] == losses[2] ? "are equal" : "DIFFER");
  std::printf("%s", trainings[2]->explain().c_str());
  std::fflush(stdout);
}

template <class Net, class Optimizer, class Options>
void print_memory(const char* name, const std::string& kind, const cohort::ProcessGroupPtr& group,
                  const Options& options, const at::Tensor& x) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  Training<Net, Optimizer> training(kind, group, options);
  for (int i = 0; i < 8; ++i) training(x);
  torch::cuda::synchronize();
  allocator::resetPeakStats(0);
  for (int i = 0; i < 4; ++i) training(x);
  torch::cuda::synchronize();
  const auto stats = allocator::getDeviceStats(0);
  const auto mebibytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::printf("%-12s %s: at most %.0f MiB allocated, %.0f MiB reserved\n", name, kind.c_str(),
              mebibytes(stats.allocated_bytes[0].peak), mebibytes(stats.reserved_bytes[0].peak));
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  const auto option = [&](const std::string& name, const std::string& otherwise) {
    const auto it = std::find(arguments.begin(), arguments.end(), name);
    return it == arguments.end() || it + 1 == arguments.end() ? otherwise : *(it + 1);
  };
  const int rounds = std::stoi(option("--rounds", "30"));
  const auto memory_of = option("--memory", "");
  const auto group = cohort::new_group("nccl", 60s, "cuda:0", {},
                                       {.store = std::make_shared<cohort::HashStore>(), .rank = 0, .size = 1});
  const auto sgd = torch::optim::SGDOptions(0.01).momentum(0.9);
  const auto adam_w = torch::optim::AdamWOptions(1e-4);
  const auto rows = torch::randn({64, 256}, torch::kCUDA);
  const auto tokens = torch::randn({128, 8, 1024}, torch::kCUDA);
  if (!memory_of.empty()) {
    print_memory<Many, cohort::optim::SGD>("200 x Linear", memory_of, group, sgd, rows);
    print_memory<Transformer, cohort::optim::AdamW>("transformer", memory_of, group, adam_w, tokens);
    return 0;
  }
  measure<Many, cohort::optim::SGD>("200 x Linear", group, sgd, rows, rounds);
  measure<Many, cohort::optim::AdamW>("with AdamW", group, adam_w, rows, rounds);
  measure<Transformer, cohort::optim::AdamW>("transformer", group, adam_w, tokens, rounds);
  return 0;
}
