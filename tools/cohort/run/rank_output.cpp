// SPDX-License-Identifier: BSD-3-Clause
#include "run/rank_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "common/terminal_text.h"

namespace cohort::tool {

namespace {

/// A longer line is broken here: memory is finite.
constexpr std::size_t longest_line = std::size_t{16} << 20U;
/// Between two states of a line that are shown.
constexpr std::chrono::seconds time_between_states{1};

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

void OutputTail::add(Streams stream, std::string_view line) {
  lines_.push_back({stream, std::string(line.substr(0, most_of_a_line))});
  if (lines_.size() <= most_lines) return;
  const auto count = static_cast<std::size_t>(std::ranges::count(lines_, stream, &Line::stream));
  const bool is_of_this = count > most_lines / 2;
  lines_.erase(std::ranges::find_if(lines_, [&](const Line& each) { return (each.stream == stream) == is_of_this; }));
}

std::vector<std::string> OutputTail::lines() const {
  std::vector<std::string> texts;
  for (const auto& each : lines_) texts.push_back(each.text);
  return texts;
}

RankStream::RankStream(asio::io_context& loop, FileDescriptor pipe, StreamSinks sinks)
    : pipe_(loop), sinks_(std::move(sinks)) {
  pipe_.assign(pipe.get());
  pipe.release();
  pipe_.non_blocking(true);
}

void RankStream::start() {
  pipe_.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](asio::error_code error) {
    if (!error && self->is_open()) self->read_on();
  });
}

void RankStream::read_on() {
  read_once();
  if (!is_open()) return;
  if (sinks_.console && sinks_.console->is_full()) {
    sinks_.console->when_room([self = shared_from_this()] {
      if (self->is_open()) self->start();
    });
    return;
  }
  start();
}

bool RankStream::read_once() {
  const auto n = ::read(pipe_.native_handle(), buffer_.data(), buffer_.size());
  if (n > 0) {
    take({buffer_.data(), static_cast<std::size_t>(n)});
    return is_open();
  }
  const bool is_end = n == 0 || errno == EIO;  // of a pipe, of a pseudo-terminal
  if (is_end) finish();
  return n < 0 && errno == EINTR;
}

void RankStream::drain() {
  // A pipe holds 64 KiB or a few times that. More than this comes only from a process that outlived its rank.
  for (int reads = 0; reads < 32 && is_open() && read_once(); ++reads) {
  }
}

void RankStream::take(std::string_view bytes) {
  keep(bytes);
  if (sinks_.is_unchanged && sinks_.console) sinks_.console->write(bytes);
  while (!bytes.empty()) {
    const auto end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    if (end == std::string_view::npos) {
      if (line_.size() >= longest_line) end_line();
      break;
    }
    bytes[end] == '\n' ? end_line() : restart_line();
    bytes.remove_prefix(end + 1);
  }
  show();
  // As without a launcher: a rank whose output nobody reads any more gets SIGPIPE with its next write.
  if (sinks_.console && sinks_.console->is_closed() && !sinks_.log) {
    if (sinks_.on_reader_gone) sinks_.on_reader_gone();  // first: a closed terminal is an error that ranks print
    pipe_.close();
  }
}

void RankStream::keep(std::string_view bytes) {
  if (!sinks_.log || write_all(sinks_.log.get(), bytes)) return;
  fmt::print(stderr, "cohort run: cannot write {}, which ends here: {}\n", sinks_.log_path,
             std::generic_category().message(errno));
  sinks_.log.reset();
}

void RankStream::end_line() {
  const bool has_more = !line_.empty() || !is_state_shown_;
  const auto& last = line_.empty() ? state_ : line_;
  sinks_.tail->add(sinks_.stream, last);
  if (has_more) add_to_shown(last);
  line_.clear();
  state_.clear();
  is_restarted_ = false;
  is_state_shown_ = false;
}

void RankStream::restart_line() {
  is_restarted_ = true;
  if (line_.empty()) return;
  state_ = std::exchange(line_, {});
  const auto now = std::chrono::steady_clock::now();
  is_state_shown_ = !is_in_place() && now - last_state_ >= time_between_states;
  if (!is_state_shown_) return;
  last_state_ = now;
  add_to_shown(state_);
}

std::string RankStream::presentable(std::string_view line) const {
  const bool is_on_terminal = sinks_.console && sinks_.console->is_terminal();
  return is_on_terminal ? for_terminal(line, Colours::keep) : std::string(line);
}

void RankStream::add_to_shown(std::string_view line) {
  shown_ += fmt::format("{}{}\n", sinks_.prefix, presentable(line));
}

void RankStream::show() {
  if (!sinks_.console || sinks_.is_unchanged) return shown_.clear();
  if (!shown_.empty()) sinks_.console->write(std::exchange(shown_, {}));
  if (is_in_place() && is_restarted_) {
    sinks_.console->write_status(sinks_.prefix + presentable(line_.empty() ? state_ : line_));
  }
}

void RankStream::finish() {
  if (!is_open()) return;
  if (!line_.empty() || !state_.empty()) end_line();
  show();
  pipe_.close();
}

}  // namespace cohort::tool
