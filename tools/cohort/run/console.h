// SPDX-License-Identifier: BSD-3-Clause
//
// Where the output of the ranks is shown. A paused terminal or a pipe that nobody reads must not keep the launcher from
// noticing a crash or a Ctrl-C, so writing never blocks where the system supports that.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::tool {

class Console {
 public:
  Console(asio::io_context& loop, int fd);

  bool is_terminal() const { return is_terminal_; }
  /// Whole lines, or bytes as they come.
  void write(std::string_view text);
  /// On a terminal: a line without an end, which the next write or status replaces.
  void write_status(std::string_view text);
  /// Nobody will ever read from it again (EPIPE).
  bool is_closed() const { return is_closed_; }
  bool is_idle() const { return pending_.empty(); }

  /// A producer stops when the console is full, and continues when its function is called.
  bool is_full() const { return pending_.size() > capacity; }
  void when_room(std::function<void()> go_on) { waiting_.push_back(std::move(go_on)); }

 private:
  static constexpr std::size_t capacity = std::size_t{1} << 20U;

  void flush();
  void close();
  void wake();

  int fd_;
  bool is_terminal_;
  bool is_closed_ = false;
  bool is_waiting_ = false;
  bool has_status_ = false;
  /// The same pipe or terminal opened a second time: O_NONBLOCK on the first would change it for everyone who shares
  /// it.
  asio::posix::stream_descriptor own_;
  std::string pending_;
  std::vector<std::function<void()>> waiting_;
};

/// Standard output and standard error; one and the same where both lead to the same place, so that lines stay whole.
struct Consoles {
  std::shared_ptr<Console> output{};
  std::shared_ptr<Console> error{};

  explicit Consoles(asio::io_context& loop);
  bool are_idle() const { return output->is_idle() && error->is_idle(); }
};

}  // namespace cohort::tool
