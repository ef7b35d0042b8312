// SPDX-License-Identifier: BSD-3-Clause
#include "torch_store.h"

#include <torch/csrc/api/include/torch/version.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <vector>

namespace cohort::bench {

struct TorchStore::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

bool TorchStore::is_available() {
  return true;
}
std::string TorchStore::version() {
  return TORCH_VERSION;
}

TorchStore::TorchStore(const std::string& host, std::uint16_t port, bool is_host) : impl_(std::make_unique<Impl>()) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_host;
  options.waitWorkers = false;
  impl_->store = c10::make_intrusive<c10d::TCPStore>(host, options);
}
TorchStore::~TorchStore() = default;

std::uint16_t TorchStore::port() const {
  return impl_->store->getPort();
}
void TorchStore::set(const std::string& key, const std::string& value) {
  impl_->store->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}
std::size_t TorchStore::get(const std::string& key) {
  return impl_->store->get(key).size();
}
std::int64_t TorchStore::add(const std::string& key, std::int64_t amount) {
  return impl_->store->add(key, amount);
}
void TorchStore::wait(const std::string& key) {
  impl_->store->wait({key});
}

}  // namespace cohort::bench
