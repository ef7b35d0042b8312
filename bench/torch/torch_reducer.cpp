// SPDX-License-Identifier: BSD-3-Clause
#include "torch_reducer.h"

#include "torch/compat/features.h"

#if !COHORT_TORCH_HAS_C10D_BACKEND
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <limits>

namespace cohort::benchmarks {

struct TorchReducer::Impl {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  std::unique_ptr<c10d::Reducer> reducer;
};

bool TorchReducer::is_available() {
  return true;
}

TorchReducer::TorchReducer(const std::string& file, int rank, int size) : impl_(std::make_unique<Impl>()) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  impl_->group = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::FileStore>(file, size), rank,
                                                             size, options);
}
TorchReducer::~TorchReducer() = default;

void TorchReducer::wrap(const std::vector<torch::Tensor>& parameters, bool gradient_as_bucket_view) {
  // As DistributedDataParallel does it: one bucket at first, then 1 MiB and 25 MiB.
  const auto [indices, limits] =
      c10d::compute_bucket_assignment_by_size(parameters, {std::numeric_limits<std::size_t>::max()});
  impl_->reducer = std::make_unique<c10d::Reducer>(
      parameters, std::vector<std::vector<std::size_t>>(indices.rbegin(), indices.rend()),
      std::vector<std::size_t>(limits.rbegin(), limits.rend()), impl_->group,
      std::vector<bool>(parameters.size(), false), 25 << 20, false, gradient_as_bucket_view,
      std::unordered_map<std::size_t, std::string>(), 1 << 20);
}

void TorchReducer::before_forward() {
  impl_->reducer->prepare_for_forward();
  if (impl_->reducer->should_rebuild_buckets()) impl_->reducer->rebuild_buckets();
}

void TorchReducer::before_backward(const torch::Tensor& output) {
  impl_->reducer->prepare_for_backward({output});
}

void TorchReducer::unwrap() {
  impl_->reducer.reset();
}

}  // namespace cohort::benchmarks
#else
#include <stdexcept>

namespace cohort::benchmarks {

struct TorchReducer::Impl {};

bool TorchReducer::is_available() {
  return false;
}
TorchReducer::TorchReducer(const std::string&, int, int) {
  throw std::runtime_error("this libtorch's c10d::Reducer is not measured");
}
TorchReducer::~TorchReducer() = default;
void TorchReducer::wrap(const std::vector<torch::Tensor>&, bool) {}
void TorchReducer::before_forward() {}
void TorchReducer::before_backward(const torch::Tensor&) {}
void TorchReducer::unwrap() {}

}  // namespace cohort::benchmarks
#endif
