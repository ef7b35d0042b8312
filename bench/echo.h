// SPDX-License-Identifier: BSD-3-Clause
//
// The shortest possible round trip over TCP: a server that sends back what it receives (epoll_wait, recv, send), and a
// client that blocks (send, recv). Three system calls on one side, two on the other, nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "measure/child.h"

namespace cohort::benchmarks {

using namespace measure;  // what they all measure with

/// Runs in the calling process until the parent ends the channel; sends it the port first.
void serve_echo(Channel& parent);

class EchoClient {
 public:
  EchoClient(std::uint16_t port, std::size_t message_size);
  void round_trip();

 private:
  FileDescriptor socket_;
  std::string message_;
};

}  // namespace cohort::benchmarks
