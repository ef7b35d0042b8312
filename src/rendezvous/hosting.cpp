// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/hosting.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace cohort {

namespace {

/// Process-wide, because listening sockets are. Never destroyed; emptied by the exit handler.
struct HostedStores {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<TcpStore>> by_endpoint;
  pid_t owner = ::getpid();
};

HostedStores& hosted() {
  alignas(HostedStores) static std::array<std::byte, sizeof(HostedStores)> storage;
  static auto* const stores = ::new (storage.data()) HostedStores();
  return *stores;
}

/// A process that fails does not stay: its death is how the others learn of the failure.
void leave_stores(int status, void*) {
  auto& stores = hosted();
  if (stores.owner != ::getpid()) return;  // a forked child: the servers are its parent's
  const std::lock_guard lock(stores.mutex);
  for (auto& [endpoint, store] : stores.by_endpoint) {
    if (status != 0) store->set_linger({});
  }
  stores.by_endpoint.clear();
}

}  // namespace

StorePtr join_as_host(TcpStoreOptions options) {
  auto& stores = hosted();
  const std::lock_guard lock(stores.mutex);
  const auto key = to_string(options.endpoint);
  if (const auto it = stores.by_endpoint.find(key); it != stores.by_endpoint.end()) {
    auto store = it->second->clone();
    store->set_timeout(options.timeout);
    return store;
  }
  static const int registered = ::on_exit(leave_stores, nullptr);
  static_cast<void>(registered);
  options.is_host = true;
  options.linger = options.timeout;
  auto store = std::make_shared<TcpStore>(std::move(options));
  stores.by_endpoint.emplace(key, store);
  return store->clone();
}

}  // namespace cohort
