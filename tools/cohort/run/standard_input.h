// SPDX-License-Identifier: BSD-3-Clause
//
// Standard input for rank 0. Ranks are in process groups of their own, and a terminal stops a group in the background
// that reads from it; so the launcher reads from a terminal and passes the input on. Rank 0 reads anything else itself.
#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <string>

#include "core/file_descriptor.h"

namespace cohort::tool {

class StandardInput {
 public:
  explicit StandardInput(asio::io_context& loop);

  /// The descriptor for the rank that is about to be started. Rank 0 of a new attempt gets what is typed from then on.
  int open_for_rank();
  /// To be called when the rank has been started: closes this process's copy of its end.
  void started() { for_rank_.reset(); }

 private:
  void await_input();
  void read();

  bool is_relayed_ = false;
  asio::posix::stream_descriptor terminal_;
  asio::posix::stream_descriptor to_rank_;
  asio::steady_timer retry_;
  FileDescriptor for_rank_;
  std::array<char, 4096> buffer_{};
};

}  // namespace cohort::tool
