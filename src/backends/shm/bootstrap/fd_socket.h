// SPDX-License-Identifier: BSD-3-Clause
//
// Messages that carry file descriptors, between processes of one user on one host.
#pragma once

#include <cohort/deadline.h>
#include <cohort/error.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file_descriptor.h"

namespace cohort::shm {

/// Linux passes at most 253 descriptors in one message.
inline constexpr std::size_t most_fds = 200;

/// This process cannot open any more files.
class NoDescriptors : public SocketError {
 public:
  using SocketError::SocketError;
};

struct Message {
  std::string bytes{};
  std::vector<FileDescriptor> fds{};
};

/// The socket is in the abstract namespace, so that no file is left behind; `name` is without the leading zero byte.
FileDescriptor listen_abstract(const std::string& name, int backlog);
/// Throws SocketError if nobody listens there. The descriptor is non-blocking and close-on-exec.
FileDescriptor connect_abstract(const std::string& name);
/// The next pending connection, or nullopt if there is none. The process at its other end runs as this user or as root.
std::optional<FileDescriptor> accept_trusted(int listener);
pid_t peer_pid(int fd);

/// Throws TimeoutError at the deadline and NetworkError if the other end is gone.
void send_message(int fd, std::string_view bytes, std::span<const int> fds, Deadline deadline);
/// An empty message means that the other end is gone.
Message receive_message(int fd, Deadline deadline);

}  // namespace cohort::shm
