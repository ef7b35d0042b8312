// SPDX-License-Identifier: BSD-3-Clause
//
// Sockets for endpoints: resolve names, bind exactly what was asked for, connect by a deadline.
#pragma once

#include <cohort/deadline.h>
#include <cohort/endpoint.h>

#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/file_descriptor.h"

namespace cohort {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const;
};

std::string to_string(const SocketAddress& address);

/// Returns all addresses of the endpoint. Throws SocketError if the name does not resolve, and TimeoutError if the name
/// service does not answer in time: the look-up runs on a helper thread, because getaddrinfo has no deadline.
std::vector<SocketAddress> resolve(const Endpoint& endpoint, Deadline deadline);

/// Returns a listening socket on the endpoint's first address and on no other. Throws SocketError if it is taken.
FileDescriptor listen_on(const Endpoint& endpoint);

/// The endpoint that a listening socket is bound to. Throws ValueError if `fd` is not a listening socket.
Endpoint bound_endpoint(int fd);

/// A connected socket, or the errno of the failure.
struct Connected {
  FileDescriptor socket;
  int error = 0;
};
/// Returns by the deadline. The socket is non-blocking.
Connected try_connect(const SocketAddress& address, Deadline deadline);

/// Waits until `fd` is ready for `events` (POLLIN, POLLOUT). Returns false if the deadline passed first.
bool wait_ready(int fd, short events, Deadline deadline);

/// Makes the kernel end a TCP connection, idle or not, when nothing has been heard from the peer's host for this long.
/// Does nothing to other sockets.
void set_keepalive_timeout(int fd, std::chrono::milliseconds after);

/// Who is at the other end of a connection, for a log: an address, or the number of a process on this host.
std::string peer_name(int fd);

/// Whether the process at the other end of a unix socket runs as this user or as root.
bool peer_is_trusted(int fd);

}  // namespace cohort
