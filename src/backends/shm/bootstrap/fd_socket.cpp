// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/bootstrap/fd_socket.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "store/socket.h"

namespace cohort::shm {

namespace {

constexpr std::size_t longest_message = std::size_t{64} * 1024;

std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) throw ValueError("shm: the socket's name is too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

FileDescriptor make_socket() {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd && (errno == EMFILE || errno == ENFILE)) throw NoDescriptors("shm: too many open files (ulimit -n)");
  if (!fd) throw SocketError(fmt::format("shm: socket: {}", std::generic_category().message(errno)));
  return fd;
}

void wait_until_ready(int fd, short events, Deadline deadline) {
  if (!wait_ready(fd, events, deadline)) throw TimeoutError("shm: a peer does not answer");
}

}  // namespace

FileDescriptor listen_abstract(const std::string& name, int backlog) {
  auto fd = make_socket();
  const auto [address, size] = address_of(name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 || ::listen(fd.get(), backlog) != 0) {
    throw SocketError(fmt::format("shm: listening: {}", std::generic_category().message(errno)));
  }
  return fd;
}

FileDescriptor connect_abstract(const std::string& name) {
  auto fd = make_socket();
  const auto [address, size] = address_of(name);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    throw SocketError(fmt::format("shm: connecting to the root of the bootstrap: {}; are all ranks on one host?",
                                  std::generic_category().message(errno)));
  }
  if (!peer_is_trusted(fd.get()))
    throw SocketError("shm: the process that listens as the root of the bootstrap belongs to another user");
  return fd;
}

std::optional<FileDescriptor> accept_trusted(int listener) {
  for (;;) {
    FileDescriptor fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      if (peer_is_trusted(fd.get())) return fd;
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    throw SocketError(fmt::format("shm: accept: {}", std::generic_category().message(errno)));
  }
}

pid_t peer_pid(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    throw SocketError(fmt::format("shm: SO_PEERCRED: {}", std::generic_category().message(errno)));
  }
  return peer.pid;
}

void send_message(int fd, std::string_view bytes, std::span<const int> fds, Deadline deadline) {
  iovec part{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(most_fds * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    auto* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (::sendmsg(fd, &message, MSG_NOSIGNAL) >= 0) return;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ETOOMANYREFS) {
      throw NetworkError(fmt::format("shm: sending to a peer: {}", std::generic_category().message(errno)));
    }
    wait_until_ready(fd, POLLOUT, deadline);
  }
}

Message receive_message(int fd, Deadline deadline) {
  std::string bytes(longest_message, '\0');
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(most_fds * sizeof(int))> control{};
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t received = 0;
  for (;;) {
    received = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (received >= 0) break;
    if (errno == EINTR) continue;
    if (errno == ECONNRESET) return {};
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      throw NetworkError(fmt::format("shm: receiving from a peer: {}", std::generic_category().message(errno)));
    }
    wait_until_ready(fd, POLLIN, deadline);
  }
  Message result;
  for (auto* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const auto count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int each = -1;
      std::memcpy(&each, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      result.fds.emplace_back(each);
    }
  }
  // The kernel drops descriptors for which it has no numbers left (RLIMIT_NOFILE), and reports it only here.
  if ((message.msg_flags & MSG_CTRUNC) != 0) throw NoDescriptors("shm: too many open files (ulimit -n)");
  bytes.resize(static_cast<std::size_t>(received));
  result.bytes = std::move(bytes);
  return result;
}

}  // namespace cohort::shm
