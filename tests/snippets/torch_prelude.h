// SPDX-License-Identifier: BSD-3-Clause
//
// The same for examples that need libtorch; see prelude.h. Models and data sets are defined, since wrappers look
// inside.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

namespace examples {  // where examples are, so that a tensor x goes before prelude.h's

/// The user's model.
struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x);
};
using ResNet = Net;
extern std::shared_ptr<Net> net;
extern cohort::DistributedDataParallel<Net> ddp;
extern torch::Tensor x, y, loss, input, inputs, targets, first, second, parameter, gradient, weight, tokens;
extern std::vector<torch::Tensor> my_shard;
extern torch::optim::SGD optimizer;
torch::Tensor loss_of(const torch::Tensor& output);

/// The user's data.
struct MyDataset : torch::data::Dataset<MyDataset> {
  torch::data::Example<> get(std::size_t index) override;
  torch::optional<std::size_t> size() const override;
};
extern MyDataset dataset;
extern std::size_t batch_size;
extern std::vector<torch::data::Example<>> data;
struct Loader {
  bool next(torch::data::Example<>& batch);
};
extern Loader loader;
extern torch::data::Example<> batch;
void train(const torch::data::Example<>& batch);

/// What a checkpoint holds, and where it lies.
extern cohort::Checkpoint checkpoint;
extern cohort::DistributedSampler sampler;
extern std::int64_t epoch, step;
extern std::string last;
extern std::shared_ptr<cohort::PowerSgdState> state;

/// Objects of PyTorch's own.
extern c10::intrusive_ptr<c10d::ProcessGroup> torch_group;
extern c10::intrusive_ptr<c10d::Store> torch_store;

}  // namespace examples
