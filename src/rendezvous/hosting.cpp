// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/hosting.h"

#include <cohort/error.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/immortal.h"
#include "core/log_format.h"
#include "store/handshake.h"

namespace cohort {

namespace {

struct HostedServer {
  std::unique_ptr<StoreServer> server;
  std::chrono::milliseconds linger;
};

/// Process-wide, because listening sockets are. Never destroyed, but emptied by the exit handler.
struct HostedServers {
  std::mutex mutex;
  std::map<std::string, HostedServer> by_endpoint;
  pid_t owner = ::getpid();
};

HostedServers& hosted() {
  static Immortal<HostedServers> servers;
  return *servers;
}

/// The exit handler. A process that fails does not wait: its end is how the others learn of the failure.
void leave(int status, void*) {
  auto& servers = hosted();
  if (servers.owner != ::getpid()) return;  // a forked child: the servers are its parent's
  const std::lock_guard lock(servers.mutex);
  for (auto& [endpoint, hosting] : servers.by_endpoint) {
    if (status != 0) continue;
    log_debug("waiting until the other processes have left the store at {}", endpoint);
    if (!hosting.server->wait_until_left(Deadline::after(hosting.linger), StoreServer::Clients::of_other_processes)) {
      log_warn("leaving although other processes still use the store at {}", endpoint);
    }
  }
  servers.by_endpoint.clear();
}

}  // namespace

StorePtr join_as_host(const TcpStoreOptions& options) {
  auto& servers = hosted();
  const std::lock_guard lock(servers.mutex);
  static const int registered = [] {
    handshake::prepare_crypto();
    return ::on_exit(leave, nullptr);
  }();
  if (registered != 0) throw Error("cannot register an exit handler");
  const auto key = to_string(options.endpoint);
  auto it = servers.by_endpoint.find(key);
  if (it == servers.by_endpoint.end()) {
    auto server = std::make_unique<StoreServer>(StoreServerOptions{.endpoint = options.endpoint,
                                                                   .secret = options.secret,
                                                                   .insecure = options.insecure,
                                                                   .tls = options.tls,
                                                                   .job_id = options.job_id});
    it = servers.by_endpoint.emplace(key, HostedServer{std::move(server), {}}).first;
  }
  auto& hosting = it->second;
  hosting.linger = std::max(hosting.linger, options.timeout);
  auto client = options;
  client.endpoint = hosting.server->endpoint();
  return std::make_shared<TcpStore>(client);
}

}  // namespace cohort
