// SPDX-License-Identifier: BSD-3-Clause
#include "torch_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>

namespace cohort::bench {

struct TorchGroup::Impl {
  std::string host;
  c10::intrusive_ptr<c10d::TCPStore> store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

bool TorchGroup::is_available() {
  return true;
}

TorchGroup::TorchGroup(const std::string& host, std::uint16_t store_port) : impl_(std::make_unique<Impl>()) {
  c10d::TCPStoreOptions options;
  options.port = store_port;
  options.waitWorkers = false;
  impl_->host = host;
  impl_->store = c10::make_intrusive<c10d::TCPStore>(host, options);
}
TorchGroup::~TorchGroup() = default;

void TorchGroup::make(int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(impl_->host));
  impl_->group = c10::make_intrusive<c10d::ProcessGroupGloo>(impl_->store, rank, size, options);
}

}  // namespace cohort::bench
