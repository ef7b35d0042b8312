// SPDX-License-Identifier: BSD-3-Clause
//
// Captured training steps on one GPU, with their optimizer, in DistributedDataParallel on nccl with one rank: eager,
// replayed by direct calls, and replayed as a CUDA graph. capture_gpu.py measures PyTorch's DDP on the same models. The
// models are 200 x Linear(256) with SGD and momentum, and a transformer of about 150 million parameters with AdamW.
//
//   capture_gpu_bench [--rounds N] [--memory eager|direct|graph]
//
// --memory: the most memory that the allocator had in use and reserved in steps of one kind alone.
#include <c10/cuda/CUDACachingAllocator.h>
#include <cohort/cohort.h>
#include <cohort/torch/capture.h>
#include <cohort/torch/ddp.h>
#include <cohort/torch/optim.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
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
  std::map<std::string, std::unique_ptr<Training<Net, Optimizer>>> trainings;
  for (const auto* const kind : {"eager", "direct", "graph"}) {
    trainings[kind] = std::make_unique<Training<Net, Optimizer>>(kind, group, options);
  }
  std::map<std::string, std::vector<double>> times;
  std::map<std::string, double> losses;
  for (int i = -8; i < rounds; ++i) {
    for (auto& [kind, training] : trainings) {
      at::Tensor loss;
      const auto took = timed([&] { loss = (*training)(x); });
      if (i >= 0) times[kind].push_back(took);
      losses[kind] = loss.item<double>();
    }
  }
  const auto eager = median(times["eager"]);
  std::printf("%-12s cohort: eager %.3f ms, captured %.3f ms (%.2fx), CUDA graph %.3f ms (%.2fx); losses %s\n", name,
              eager, median(times["direct"]), eager / median(times["direct"]), median(times["graph"]),
              eager / median(times["graph"]),
              losses["eager"] == losses["direct"] && losses["eager"] == losses["graph"] ? "are equal" : "DIFFER");
  std::printf("%s", trainings["graph"]->explain().c_str());
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
  measure<Transformer, cohort::optim::AdamW>("transformer", group, adam_w, tokens, rounds);
  return 0;
}
