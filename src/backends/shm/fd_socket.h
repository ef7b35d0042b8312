// SPDX-License-Identifier: BSD-3-Clause
//
// Messages with file descriptors in them, between processes of one user on one host.
#pragma once

#include <cohort/deadline.h>
#include <cohort/error.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file_descriptor.h"

namespace cohort::shm {

/// Most that Linux passes in one message is 253.
inline constexpr std::size_t most_fds = 200;

/// This process may open no more files.
class NoDescriptors : public SocketError {
 public:
  using SocketError::SocketError;
};

struct Message {
  std::string bytes{};
  std::vector<FileDescriptor> fds{};
};

/// Abstract, so that there is no file to leave behind; `name` without the leading zero.
FileDescriptor listen_abstract(const std::string& name, int backlog);
/// SocketError: nobody listens there. Non-blocking, close-on-exec.
FileDescriptor connect_abstract(const std::string& name);
/// The next connection that is waiting; nothing if there is none. The process at its other end runs as this user or
/// root.
std::optional<FileDescriptor> accept_trusted(int listener);
pid_t peer_pid(int fd);

/// TimeoutError by the deadline; NetworkError when the other end is gone.
void send_message(int fd, std::string_view bytes, std::span<const int> fds, Deadline deadline);
/// An empty message: the other end is gone.
Message receive_message(int fd, Deadline deadline);

}  // namespace cohort::shm
