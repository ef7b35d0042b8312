// SPDX-License-Identifier: BSD-3-Clause
//
// What a rank writes: read from its pipe, shown in whole lines behind its name, kept in a log, and its end remembered
// for the report should it fail.
#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "core/file_descriptor.h"
#include "run/console.h"

namespace cohort::tool {

/// The last lines of a rank, both streams together, in the order they came.
class OutputTail {
 public:
  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  static constexpr std::size_t most_lines = 20;
  static constexpr std::size_t most_of_a_line = 2000;
  std::deque<std::string> lines_;
};

struct StreamSinks {
  std::shared_ptr<Console> console{};  ///< nothing: not shown
  std::string prefix{};                ///< before each line; empty: bytes are passed on as they come
  FileDescriptor log{};                ///< nothing: not kept
  std::shared_ptr<OutputTail> tail{};
};

/// One stream of one rank.
class RankStream : public std::enable_shared_from_this<RankStream> {
 public:
  RankStream(asio::io_context& loop, FileDescriptor pipe, StreamSinks sinks);

  void start();
  /// Takes what is in the pipe now; for when the rank has ended.
  void drain();
  /// Shows a last line that has no end, and closes.
  void finish();
  bool is_open() const { return pipe_.is_open(); }

 private:
  void read_on();
  /// False: nothing is there now, or nothing will ever come.
  bool read_once();
  void take(std::string_view bytes);
  void take_line(std::string_view line);
  void show(std::string_view text);

  asio::posix::stream_descriptor pipe_;
  StreamSinks sinks_;
  std::string line_;   // begun and not ended yet
  std::string shown_;  // lines of one read, written together
  std::array<char, 65536> buffer_{};
};

/// The colour of a rank's name for a terminal.
std::string rank_prefix(int rank, bool with_colour);

}  // namespace cohort::tool
