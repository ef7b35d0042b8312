// SPDX-License-Identifier: BSD-3-Clause
//
// Sockets for endpoints: resolving, binding exactly what was asked for, connecting by a deadline.
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

/// All addresses of the endpoint. A name that does not resolve is a SocketError, one whose resolver does not answer in
/// time a TimeoutError: the look-up runs on a helper thread, since getaddrinfo has no deadline of its own.
std::vector<SocketAddress> resolve(const Endpoint& endpoint, Deadline deadline);

/// A listening socket on the endpoint's first address and on no other. SocketError if it is taken; says by what name.
FileDescriptor listen_on(const Endpoint& endpoint);

/// The endpoint a listening socket is bound to. ValueError if `fd` is not one.
Endpoint bound_endpoint(int fd);

/// The result of one attempt to connect: the socket, or the errno of the failure.
struct ConnectAttempt {
  FileDescriptor socket;
  int error = 0;
};
/// Non-blocking socket; returns by the deadline.
ConnectAttempt try_connect(const SocketAddress& address, Deadline deadline);

/// Waits until `fd` is ready for `events` (POLLIN, POLLOUT). False: the deadline passed.
bool wait_ready(int fd, short events, Deadline deadline);

/// Has the kernel end a TCP connection whose other side's host has not been heard of for this long, whether idle or
/// not. Nothing for other sockets.
void notice_silence(int fd, std::chrono::milliseconds after);

/// Whether the process at the other end of a unix socket runs as this user or as root.
bool peer_is_trusted(int fd);

}  // namespace cohort
