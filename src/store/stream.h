// SPDX-License-Identifier: BSD-3-Clause
//
// A client's byte stream over a socket, with or without TLS. Its calls block, but not beyond their deadline.
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
  /// `socket` has to be connected and non-blocking.
  explicit Stream(FileDescriptor socket) : socket_(std::move(socket)) {}

  bool is_open() const { return static_cast<bool>(socket_); }
  int descriptor() const { return socket_.get(); }
  void close();

  /// The functions below return false if the deadline passes first, and throw NetworkError if the connection fails.

  bool start_tls(TlsSession session, Deadline deadline);
  bool send(std::string_view bytes, Deadline deadline);
  /// Appends at least one and at most `most` bytes to `into`.
  bool receive(std::string& into, std::size_t most, Deadline deadline);

 private:
  /// Waits until OpenSSL can go on; throws if `result` is an error.
  bool await_tls(int result, Deadline deadline);

  FileDescriptor socket_;
  TlsSession tls_;
};

}  // namespace cohort
