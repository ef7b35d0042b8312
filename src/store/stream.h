// SPDX-License-Identifier: BSD-3-Clause
//
// A client's connection: blocking calls that end by a deadline, over a socket with or without TLS.
#pragma once

#include <cohort/deadline.h>

#include <string>
#include <string_view>

#include "core/file_descriptor.h"
#include "store/tls.h"

namespace cohort {

class Stream {
 public:
  Stream() = default;
  /// `socket` is connected and non-blocking.
  explicit Stream(FileDescriptor socket) : socket_(std::move(socket)) {}

  bool is_open() const { return static_cast<bool>(socket_); }
  int descriptor() const { return socket_.get(); }
  void close();

  /// The calls below return false when the deadline passes first, and throw NetworkError when the connection fails.

  bool start_tls(TlsSession session, Deadline deadline);
  bool send(std::string_view bytes, Deadline deadline);
  /// Appends at least one and at most `most` bytes to `into`.
  bool receive(std::string& into, std::size_t most, Deadline deadline);

 private:
  /// Waits for what OpenSSL asks for; throws if it is an error.
  bool await_tls(int result, Deadline deadline);

  FileDescriptor socket_;
  TlsSession tls_;
};

}  // namespace cohort
