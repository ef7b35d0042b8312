// SPDX-License-Identifier: BSD-3-Clause
//
// PyTorch's own DistributedDataParallel is asked: reference.py trains five models with it and writes down weights,
// data, losses and buckets; the same trainings with ours must come to the same.
#include <cohort/torch/ddp.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "support/spawned.h"
#include "support/temporary.h"
#include "torch/oracle/models.h"
#include "torch/oracle/tensor_file.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using std::filesystem::path;

torch::Tensor in_a_row(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> parts;
  for (const auto& each : tensors) parts.push_back(each.detach().reshape(-1).to(at::kDouble));
  return torch::cat(parts);
}

/// |ours - theirs| / |theirs|, of all elements together.
double distance(const torch::Tensor& ours, const torch::Tensor& theirs) {
  return ((ours - theirs).norm() / theirs.norm()).item<double>();
}

struct Training {
  double learning_rate = 0;
  double momentum = 0;
  double bucket_cap_mb = 0;  ///< 0: the default
  bool find_unused = false;
};

template <class Model>
void expect_same(const path& folder, const ProcessGroupPtr& pg, const Training& training) {
  SCOPED_TRACE(folder.filename().string());
  const auto inputs = read_tensors(folder / "inputs.bin").at(0);
  const auto targets = read_tensors(folder / "targets.bin").at(0);
  const auto start = read_tensors(folder / "parameters.bin");
  const auto model = std::make_shared<Model>();
  model->to(start.front().scalar_type());
  const auto parameters = model->parameters();
  ASSERT_EQ(parameters.size(), start.size());
  {
    const torch::NoGradGuard no_grad;
    // Rank 0 alone knows where to begin: the wrapper tells the others.
    for (std::size_t i = 0; i < start.size() && pg->rank() == 0; ++i) parameters[i].copy_(start[i]);
  }
  DdpOptions options;
  options.process_group = pg;
  options.find_unused_parameters = training.find_unused;
  if (training.bucket_cap_mb > 0) options.bucket_cap_mb = training.bucket_cap_mb;
  DistributedDataParallel ddp(model, options);
  torch::optim::SGD optimizer(ddp.parameters(),
                              torch::optim::SGDOptions(training.learning_rate).momentum(training.momentum));
  std::vector<torch::Tensor> losses;
  for (std::int64_t step = 0; step < inputs.size(0); ++step) {
    const auto loss = torch::nn::functional::cross_entropy(ddp.forward(inputs[step][pg->rank()], step, pg->rank()),
                                                           targets[step][pg->rank()]);
    ddp.zero_grad(training.find_unused);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.detach());
  }

  const double bound = start.front().scalar_type() == at::kDouble ? 1e-10 : 1e-5;
  const auto their_losses = read_tensors(folder / "losses.bin").at(0)[pg->rank()];
  EXPECT_LT(distance(in_a_row(losses), in_a_row({their_losses})), bound) << "losses";
  auto final = parameters;
  for (const auto& buffer : model->buffers()) {
    if (buffer.dim() > 0) final.push_back(buffer);  // statistics, and not the count of batches
  }
  // Buffers of the other ranks are their own until the next forward.
  const auto theirs = in_a_row(read_tensors(folder / "final.bin"));
  const auto ours = in_a_row(final);
  ASSERT_EQ(ours.numel(), theirs.numel());
  const auto compared = pg->rank() == 0 ? theirs.numel() : in_a_row(parameters).numel();
  EXPECT_LT(distance(ours.slice(0, 0, compared), theirs.slice(0, 0, compared)), bound) << "weights";
  std::ifstream buckets(folder / "buckets.txt");
  EXPECT_EQ(ddp.logging_data().text("rebuilt_per_bucket_param_indices"),
            std::string(std::istreambuf_iterator<char>(buckets), {}));
}

void compare_with_pytorch(int ranks) {
  const std::string python = "/usr/bin/python3";
  const auto script = (path(COHORT_ORACLE_FOLDER) / "reference.py").string();
  const TemporaryFolder folder;
  const auto asked = Spawned({python, script, folder / "", std::to_string(ranks)}, {}).finish();
  if (asked.status == 77 || asked.status == 127) GTEST_SKIP() << python << " has no PyTorch (python3-torch)";
  ASSERT_EQ(asked.status, 0) << asked.output;
  with_torch_processes(ranks, [&](const ProcessGroupPtr& pg) {
    for (const std::string type : {"_float32", "_float64"}) {
      expect_same<Mlp>(folder / ("mlp" + type), pg, {.learning_rate = 0.05, .momentum = 0.9});
      expect_same<ConvNet>(folder / ("convnet" + type), pg,
                           {.learning_rate = 0.05, .momentum = 0.9, .bucket_cap_mb = 0.001});
      expect_same<Transformer>(folder / ("transformer" + type), pg,
                               {.learning_rate = 0.02, .momentum = 0.9, .bucket_cap_mb = 0.02});
      expect_same<SparseWords>(folder / ("sparse" + type), pg, {.learning_rate = 0.5, .bucket_cap_mb = 0.001});
      expect_same<Branches>(folder / ("unused" + type), pg,
                            {.learning_rate = 0.05, .momentum = 0.9, .bucket_cap_mb = 0.001, .find_unused = true});
    }
  });
}

TEST(DdpOracle, TwoRanksLearnWhatPyTorchLearns) {
  compare_with_pytorch(2);
}

TEST(DdpOracle, ThreeRanksLearnWhatPyTorchLearns) {
  compare_with_pytorch(3);
}

}  // namespace
}  // namespace cohort::test
