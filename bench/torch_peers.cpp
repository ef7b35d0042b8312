// SPDX-License-Identifier: BSD-3-Clause
#include "torch_peers.h"

#ifdef BENCH_HAS_TORCH
#include <torch/csrc/api/include/torch/version.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#endif
#ifdef BENCH_HAS_TORCH_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include <chrono>
#include <vector>

namespace cohort::benchmarks {

#ifdef BENCH_HAS_TORCH

namespace {

auto connected(const std::string& host, std::uint16_t port, bool is_host) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_host;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

class Store final : public TorchStore {
 public:
  Store(const std::string& host, std::uint16_t port, bool is_host) : store_(connected(host, port, is_host)) {}
  std::uint16_t port() const override { return store_->getPort(); }
  void set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  std::size_t get(const std::string& key) override { return store_->get(key).size(); }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_->add(key, amount); }
  void wait(const std::string& key) override { store_->wait({key}); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

const std::string torch_version = TORCH_VERSION;

std::unique_ptr<TorchStore> make_torch_store(const std::string& host, std::uint16_t port, bool is_host) {
  return std::make_unique<Store>(host, port, is_host);
}

#else

const std::string torch_version;

std::unique_ptr<TorchStore> make_torch_store(const std::string&, std::uint16_t, bool) {
  return nullptr;
}

#endif

#ifdef BENCH_HAS_TORCH_GLOO

namespace {

class Group final : public TorchGroup {
 public:
  Group(const std::string& host, std::uint16_t port) : host_(host), store_(connected(host, port, false)) {}
  void make(int rank, int size) override {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host_));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, rank, size, options);
  }

 private:
  std::string host_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

const bool has_torch_group = true;

std::unique_ptr<TorchGroup> make_torch_group(const std::string& host, std::uint16_t store_port) {
  return std::make_unique<Group>(host, store_port);
}

#else

const bool has_torch_group = false;

std::unique_ptr<TorchGroup> make_torch_group(const std::string&, std::uint16_t) {
  return nullptr;
}

#endif

}  // namespace cohort::benchmarks
