// SPDX-License-Identifier: BSD-3-Clause
//
// Standard input for rank 0. Ranks are in process groups of their own, and a terminal stops a group in the background
// that reads from it; so from a terminal the launcher reads and passes on. Anything else rank 0 reads itself.
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

  /// For the rank about to be started; a new attempt's rank 0 gets what is typed from then on.
  int open_for_rank();
  /// It is started: only it keeps its end.
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
