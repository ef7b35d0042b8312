// SPDX-License-Identifier: BSD-3-Clause
//
// What a rank writes: read from its pipe or pseudo-terminal, shown in whole lines behind a prefix, kept in a log, and
// its last lines remembered for the report if it fails.
//
// A carriage return begins a line anew, as progress bars do. Each state of such a line gets the prefix, so that no rank
// can write over it and pretend to be another. On a terminal that shows this rank alone the states replace each other;
// otherwise a state is shown as a line of its own, at most one a second, and the final one always.
#pragma once

#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_descriptor.h"
#include "run/console.h"
#include "run/launch_plan.h"

namespace cohort::tool {

/// The last lines of a rank, both streams together, in the order they were read. That is not always the order in which
/// they were written, so neither stream pushes out the last half of the other's.
class OutputTail {
 public:
  void add(Streams stream, std::string_view line);
  std::vector<std::string> lines() const;

 private:
  struct Line {
    Streams stream;
    std::string text;
  };

  static constexpr std::size_t most_lines = 20;
  static constexpr std::size_t most_of_a_line = 2000;
  std::deque<Line> lines_;
};

struct StreamSinks {
  std::shared_ptr<Console> console{};  ///< null: not shown
  bool is_unchanged = false;           ///< bytes are shown as they come, not in whole lines
  bool is_alone = false;               ///< no other rank is shown on the console
  std::string prefix{};                ///< before each line
  FileDescriptor log{};                ///< none: not kept
  std::string log_path{};              ///< for errors
  std::shared_ptr<OutputTail> tail{};
  Streams stream = standard_output;  ///< in the tail
  /// Called once, when nobody reads the console any more and nothing is kept. Null: closing the pipe tells the rank.
  std::function<void()> on_reader_gone{};
};

/// One stream of one rank.
class RankStream : public std::enable_shared_from_this<RankStream> {
 public:
  RankStream(asio::io_context& loop, FileDescriptor pipe, StreamSinks sinks);

  void start();
  /// Reads what is in the pipe now; for when the rank has ended.
  void drain();
  /// What was read of a line that has not ended.
  const std::string& unfinished() const { return line_; }
  /// Shows a last line that has no line break, and closes the pipe.
  void finish();
  bool is_open() const { return pipe_.is_open(); }

 private:
  void read_on();
  /// False: there is nothing to read now, or ever again.
  bool read_once();
  void take(std::string_view bytes);
  void keep(std::string_view bytes);
  void end_line();
  void restart_line();
  /// The states of a line replace each other.
  bool is_in_place() const { return sinks_.is_alone && sinks_.console && sinks_.console->is_terminal(); }
  /// A line as it is shown: on a terminal without what would give it orders.
  std::string presentable(std::string_view line) const;
  void add_to_shown(std::string_view line);
  void show();

  asio::posix::stream_descriptor pipe_;
  StreamSinks sinks_;
  std::string line_;             // begun and not ended yet; since its last carriage return
  std::string state_;            // what stood there before that
  bool is_restarted_ = false;    // it had a carriage return
  bool is_state_shown_ = false;  // as a line of its own
  std::chrono::steady_clock::time_point last_state_{};
  std::string shown_;  // lines of one read, written together
  std::array<char, 65536> buffer_{};
};

}  // namespace cohort::tool
