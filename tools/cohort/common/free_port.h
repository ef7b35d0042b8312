// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "common/throw_errno.h"
#include "core/file_descriptor.h"

namespace cohort::tool {

/// A TCP port that is free on all addresses of this host now; whoever gets it binds it a moment later.
inline std::uint16_t free_port() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (!socket || ::bind(socket.get(), generic, size) != 0 || ::getsockname(socket.get(), generic, &size) != 0) {
    throw_errno("cannot find a free port");
  }
  return ntohs(address.sin_port);
}

}  // namespace cohort::tool
