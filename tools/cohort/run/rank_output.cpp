// SPDX-License-Identifier: BSD-3-Clause
#include "run/rank_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace cohort::tool {

namespace {

/// A line without end is broken here; memory has one.
constexpr std::size_t longest_line = std::size_t{1} << 20U;

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

void OutputTail::add(std::string_view line) {
  lines_.emplace_back(line.substr(0, most_of_a_line));
  if (lines_.size() > most_lines) lines_.pop_front();
}

std::string rank_prefix(int rank, bool with_colour) {
  constexpr std::array colours{36, 33, 32, 35, 34, 96, 93, 92, 95, 94};
  if (!with_colour) return fmt::format("[rank {}] ", rank);
  return fmt::format("\x1b[{}m[rank {}]\x1b[0m ", colours.at(static_cast<std::size_t>(rank) % colours.size()), rank);
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
  if (n == 0) finish();
  return n < 0 && errno == EINTR;
}

void RankStream::drain() {
  // A pipe holds 64 KiB, maybe a few times that; more comes only from a process that escaped the rank's end.
  for (int reads = 0; reads < 32 && is_open() && read_once(); ++reads) {
  }
}

void RankStream::take(std::string_view bytes) {
  if (sinks_.log && !write_all(sinks_.log.get(), bytes)) {
    fmt::print(stderr, "cohort run: {}cannot write the log, which ends here: {}\n", sinks_.prefix,
               std::generic_category().message(errno));
    sinks_.log.reset();
  }
  if (sinks_.prefix.empty()) show(bytes);
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (end == std::string_view::npos && line_.size() < longest_line) break;
    take_line(line_);
    line_.clear();
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
  }
  if (!shown_.empty()) show(std::exchange(shown_, {}));
  // As without a launcher: a rank whose output nobody reads any more gets SIGPIPE when it writes on.
  if (sinks_.console && sinks_.console->is_closed() && !sinks_.log) pipe_.close();
}

void RankStream::take_line(std::string_view line) {
  sinks_.tail->add(line);
  if (!sinks_.prefix.empty()) shown_ += fmt::format("{}{}\n", sinks_.prefix, line);
}

void RankStream::show(std::string_view text) {
  if (sinks_.console) sinks_.console->write(text);
}

void RankStream::finish() {
  if (!is_open()) return;
  if (!line_.empty()) {
    take_line(line_);
    line_.clear();
    if (!shown_.empty()) show(std::exchange(shown_, {}));
  }
  pipe_.close();
}

}  // namespace cohort::tool
