// SPDX-License-Identifier: BSD-3-Clause
#include "run/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace cohort::tool {

namespace {

/// -1 where it cannot be done (sockets) or would be wrong (files: the second opening has its own position).
int reopen_non_blocking(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !(S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode))) return -1;
  return ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

constexpr std::string_view erase_line = "\r\x1b[K";

bool lead_to_same_place(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

Console::Console(asio::io_context& loop, int fd) : fd_(fd), is_terminal_(::isatty(fd) == 1), own_(loop) {
  const int own = reopen_non_blocking(fd);
  if (own < 0) return;
  asio::error_code refused;
  own_.assign(own, refused);
  if (refused) {  // /dev/null and its like cannot be waited for, and never block
    ::close(own);
  } else {
    fd_ = own;
  }
}

void Console::write(std::string_view text) {
  if (is_closed_) return;
  if (std::exchange(has_status_, false)) pending_ += erase_line;
  pending_ += text;
  if (!is_waiting_) flush();
}

void Console::write_status(std::string_view text) {
  write(text);
  has_status_ = true;
}

void Console::flush() {
  std::size_t written = 0;
  while (written < pending_.size()) {
    const auto n = ::write(fd_, pending_.data() + written, pending_.size() - written);
    if (n >= 0) {
      written += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN && own_.is_open()) {
      pending_.erase(0, written);
      is_waiting_ = true;
      own_.async_wait(asio::posix::stream_descriptor::wait_write, [this](asio::error_code error) {
        if (error == asio::error::operation_aborted) return;
        is_waiting_ = false;
        flush();
      });
      if (!is_full()) wake();
      return;
    } else if (errno != EINTR) {
      close();
      return;
    }
  }
  pending_.clear();
  wake();
}

void Console::close() {
  is_closed_ = true;
  pending_.clear();
  wake();
}

void Console::wake() {
  for (const auto& go_on : std::exchange(waiting_, {})) go_on();
}

Consoles::Consoles(asio::io_context& loop) : output(std::make_shared<Console>(loop, STDOUT_FILENO)) {
  error = lead_to_same_place(STDOUT_FILENO, STDERR_FILENO) ? output : std::make_shared<Console>(loop, STDERR_FILENO);
}

}  // namespace cohort::tool
