// SPDX-License-Identifier: BSD-3-Clause
#include "run/standard_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <asio/buffer.hpp>
#include <asio/write.hpp>
#include <utility>

#include "common/pipe.h"

namespace cohort::tool {

namespace {

bool is_in_foreground() {
  return ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

}  // namespace

StandardInput::StandardInput(asio::io_context& loop) : terminal_(loop), to_rank_(loop), retry_(loop) {
  if (::isatty(STDIN_FILENO) != 1) return;
  is_relayed_ = true;
  if (!is_in_foreground()) return;
  // Opened anew, because non-blocking mode is shared with the shell.
  const int own = ::open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (own >= 0) terminal_.assign(own);
}

int StandardInput::open_for_rank() {
  if (!is_relayed_) return STDIN_FILENO;
  auto pipe = make_pipe();
  for_rank_ = std::move(pipe.reading);
  if (!terminal_.is_open()) return for_rank_.get();  // nothing to read: the rank sees its end
  const bool is_first = !to_rank_.is_open();
  if (!is_first) to_rank_.close();
  to_rank_.assign(pipe.writing.release());
  if (is_first) await_input();
  return for_rank_.get();
}

void StandardInput::await_input() {
  terminal_.async_wait(asio::posix::stream_descriptor::wait_read, [this](asio::error_code error) {
    if (error) return;
    if (is_in_foreground()) return read();
    // Sent to the background, by Ctrl-Z and bg: what is typed now is for the shell.
    retry_.expires_after(std::chrono::milliseconds(200));
    retry_.async_wait([this](asio::error_code cancelled) {
      if (!cancelled) await_input();
    });
  });
}

void StandardInput::read() {
  terminal_.async_read_some(asio::buffer(buffer_), [this](asio::error_code error, std::size_t size) {
    if (error == asio::error::operation_aborted) return;
    if (error) {  // end of input
      asio::error_code ignored;
      to_rank_.close(ignored);
      terminal_.close(ignored);
      return;
    }
    asio::async_write(to_rank_, asio::buffer(buffer_, size), [this](asio::error_code, std::size_t) {
      // A rank that does not read loses its input; that of the next attempt may want it.
      if (terminal_.is_open()) await_input();
    });
  });
}

}  // namespace cohort::tool
