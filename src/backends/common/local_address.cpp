// SPDX-License-Identifier: BSD-3-Clause
#include "backends/common/local_address.h"

#include <cohort/error.h>
#include <cohort/prefix_store.h>
#include <cohort/tcp_store.h>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <array>
#include <memory>
#include <vector>

#include "core/file_descriptor.h"
#include "core/parse.h"
#include "store/socket.h"

namespace cohort {

namespace {

std::string numeric(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text.data();
}

/// The address of the first interface in the list that is up, IPv4 before IPv6.
std::string address_of_interface(std::string_view names) {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) throw BackendError("the network interfaces cannot be listed");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(raw, ::freeifaddrs);
  std::vector<std::string> there;
  for (const auto wanted : split(names, ',')) {
    for (const int family : {AF_INET, AF_INET6}) {
      for (const auto* each = all.get(); each != nullptr; each = each->ifa_next) {
        if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family || (each->ifa_flags & IFF_UP) == 0)
          continue;
        if (family == AF_INET) there.emplace_back(each->ifa_name);
        if (wanted == each->ifa_name) {
          return numeric(each->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
        }
      }
    }
  }
  throw ValueError(
      fmt::format("GLOO_SOCKET_IFNAME={}: no such interface is up; there are {}", names, fmt::join(there, ", ")));
}

/// The source address of packets to `host`. Connecting a datagram socket sends nothing.
std::string address_towards(const std::string& host, Deadline deadline) {
  constexpr std::uint16_t any_port = 9;
  for (const auto& address : resolve(Endpoint::tcp(host, any_port), deadline)) {
    const FileDescriptor socket(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), address.get(), address.size) != 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) continue;
    return numeric(reinterpret_cast<const sockaddr*>(&own), size);
  }
  return {};
}

}  // namespace

std::string local_address(const Env& env, const StorePtr& store, Deadline deadline) {
  if (const auto names = env.text("GLOO_SOCKET_IFNAME"); !names.empty()) return address_of_interface(names);
  std::string host(env.text("MASTER_ADDR"));
  auto below = store;
  if (const auto prefixed = std::dynamic_pointer_cast<PrefixStore>(store))
    below = prefixed->underlying_non_prefix_store();
  if (const auto* const tcp = dynamic_cast<TcpStore*>(below.get());
      tcp != nullptr && tcp->endpoint().kind == Endpoint::Kind::tcp) {
    host = tcp->host();
  }
  if (host.empty()) return "127.0.0.1";
  const auto found = address_towards(host, deadline);
  return found.empty() ? "127.0.0.1" : found;
}

}  // namespace cohort
