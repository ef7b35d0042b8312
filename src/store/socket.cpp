// SPDX-License-Identifier: BSD-3-Clause
#include "store/socket.h"

#include <arpa/inet.h>
#include <cohort/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "core/parse.h"
#include "core/run_with_deadline.h"

namespace cohort {

namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

SocketAddress unix_address(const std::string& path) {
  SocketAddress address;
  auto* const un = reinterpret_cast<sockaddr_un*>(&address.storage);
  if (path.empty() || path.size() >= sizeof(un->sun_path)) {
    throw ValueError(fmt::format("unix socket \"{}\": a name has 1 to {} characters", path, sizeof(un->sun_path) - 1));
  }
  un->sun_family = AF_UNIX;
  std::memcpy(un->sun_path, path.data(), path.size());
  const bool is_abstract = path[0] == '@';
  if (is_abstract) un->sun_path[0] = '\0';
  // The length delimits an abstract name; a path ends with a zero byte, which is part of the length.
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (is_abstract ? 0 : 1));
  return address;
}

/// The result of a name look-up, shared with the thread that makes it.
struct Lookup {
  int error = 0;
  std::vector<SocketAddress> addresses;
};

void look_up(const std::string& host, const std::string& port, Lookup& lookup) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  lookup.error = error;
  for (const auto* info = error == 0 ? found : nullptr; info != nullptr; info = info->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.size = info->ai_addrlen;
    lookup.addresses.push_back(address);
  }
}

/// When nobody listens, the kernel may give the client the very port that it connects to, and TCP's simultaneous open
/// then connects the client to itself. It would occupy the port that the server is about to bind.
bool is_connected_to_itself(int fd) {
  SocketAddress here;
  SocketAddress there;
  here.size = there.size = sizeof(sockaddr_storage);
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&here.storage), &here.size) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&there.storage), &there.size) == 0 &&
         to_string(here) == to_string(there);
}

}  // namespace

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_UNIX) return true;
  if (storage.ss_family == AF_INET) {
    const auto* const in = reinterpret_cast<const sockaddr_in*>(&storage);
    return (ntohl(in->sin_addr.s_addr) >> 24U) == 127;
  }
  const auto* const in6 = reinterpret_cast<const sockaddr_in6*>(&storage);
  if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) return in6->sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

std::string to_string(const SocketAddress& address) {
  if (address.storage.ss_family == AF_UNIX) {
    const auto* const un = reinterpret_cast<const sockaddr_un*>(&address.storage);
    const auto length = address.size - offsetof(sockaddr_un, sun_path);
    if (length == 0) return "unix:";
    if (un->sun_path[0] == '\0') return "unix:@" + std::string(un->sun_path + 1, length - 1);
    return "unix:" + std::string(un->sun_path);
  }
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  ::getnameinfo(address.get(), address.size, host.data(), host.size(), port.data(), port.size(),
                NI_NUMERICHOST | NI_NUMERICSERV);
  if (address.storage.ss_family == AF_INET6) return fmt::format("[{}]:{}", host.data(), port.data());
  return fmt::format("{}:{}", host.data(), port.data());
}

std::vector<SocketAddress> resolve(const Endpoint& endpoint, Deadline deadline) {
  if (endpoint.kind == Endpoint::Kind::unix_socket) return {unix_address(endpoint.path)};
  const auto port = std::to_string(endpoint.port);
  auto lookup = std::make_shared<Lookup>();
  // An address needs no name service, and so no thread.
  in6_addr scratch{};
  const bool numeric = ::inet_pton(AF_INET, endpoint.host.c_str(), &scratch) == 1 ||
                       ::inet_pton(AF_INET6, endpoint.host.c_str(), &scratch) == 1;
  if (numeric) {
    look_up(endpoint.host, port, *lookup);
  } else if (!run_with_deadline([lookup, host = endpoint.host, port] { look_up(host, port, *lookup); }, deadline)) {
    throw TimeoutError(fmt::format("host \"{}\": the name service did not answer in time", endpoint.host));
  }
  if (lookup->error != 0) {
    throw SocketError(fmt::format("host \"{}\": {}", endpoint.host, ::gai_strerror(lookup->error)));
  }
  return lookup->addresses;
}

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;  // whatever the name service says, or does not (RFC 6761)
  const auto addresses = resolve(Endpoint::tcp(host, 0), Deadline::after(std::chrono::seconds(5)));
  return std::all_of(addresses.begin(), addresses.end(), [](const SocketAddress& a) { return a.is_loopback(); });
}

FileDescriptor listen_on(const Endpoint& endpoint) {
  const auto address = resolve(endpoint, Deadline::after(std::chrono::seconds(30))).front();
  const int family = address.storage.ss_family;
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw SocketError(fmt::format("socket for {}: {}", to_string(endpoint), reason(errno)));
  const int on = 1;
  if (family != AF_UNIX) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // [::] would accept IPv4 as well, but a server binds exactly what it is told: IPv6 alone.
  if (family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  if (::bind(fd.get(), address.get(), address.size) != 0) {
    const int error = errno;
    const auto* const hint = error == EADDRINUSE      ? "; another program, or an earlier run of this one, holds it"
                             : error == EADDRNOTAVAIL ? "; it is not an address of this host"
                                                      : "";
    throw SocketError(fmt::format("cannot listen on {}: {}{}", to_string(endpoint), reason(error), hint));
  }
  if (::listen(fd.get(), SOMAXCONN) != 0) {
    throw SocketError(fmt::format("cannot listen on {}: {}", to_string(endpoint), reason(errno)));
  }
  return fd;
}

Endpoint bound_endpoint(int fd) {
  int listening = 0;
  socklen_t size = sizeof(listening);
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0) {
    throw ValueError(fmt::format("file descriptor {} is not a listening socket", fd));
  }
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) {
    throw ValueError(fmt::format("file descriptor {}: {}", fd, reason(errno)));
  }
  const auto text = to_string(address);
  return Endpoint::parse(address.storage.ss_family == AF_UNIX ? text : "tcp://" + text);
}

Connected try_connect(const SocketAddress& address, Deadline deadline) {
  const int family = address.storage.ss_family;
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return {FileDescriptor(), errno};
  const int on = 1;
  if (family != AF_UNIX) ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(fd.get(), address.get(), address.size) == 0) {
    if (family != AF_UNIX && is_connected_to_itself(fd.get())) return {FileDescriptor(), ECONNREFUSED};
    return {std::move(fd), 0};
  }
  // A full backlog of a unix socket is EAGAIN and cannot be waited for: the caller tries again.
  if (errno != EINPROGRESS) return {FileDescriptor(), errno};
  if (!wait_ready(fd.get(), POLLOUT, deadline)) return {FileDescriptor(), ETIMEDOUT};
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return {FileDescriptor(), error};
  if (is_connected_to_itself(fd.get())) return {FileDescriptor(), ECONNREFUSED};
  return {std::move(fd), 0};
}

bool wait_ready(int fd, short events, Deadline deadline) {
  pollfd item{fd, events, 0};
  for (;;) {
    const int n = ::poll(&item, 1, deadline.poll_timeout());
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) throw NetworkError(fmt::format("poll: {}", reason(errno)));
    if (n == 0 && deadline.expired()) return false;
  }
}

void set_keepalive_timeout(int fd, std::chrono::milliseconds after) {
  // The probes start after half of the time and come once a second or less often.
  const auto whole = std::max<std::int64_t>(2, after.count() / 1000);
  const int on = 1;
  const auto idle = static_cast<int>(whole - whole / 2);
  const auto interval = static_cast<int>(std::max<std::int64_t>(1, whole / 2 / 3));
  const auto count = std::max(1, static_cast<int>(whole / 2) / interval);
  const auto unanswered = static_cast<unsigned>(after.count());
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof(unanswered));
}

std::string peer_name(int fd) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return "unknown address";
  if (address.storage.ss_family != AF_UNIX) return to_string(address);
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "this host";
  return fmt::format("this host (pid {})", peer.pid);
}

bool peer_is_trusted(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

}  // namespace cohort
