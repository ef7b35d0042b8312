// SPDX-License-Identifier: BSD-3-Clause
#include "run/standard_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <asio/buffer.hpp>
#include <asio/write.hpp>
#include <utility>

#include "common/pipe.h"

namespace cohort::tool {

StandardInput::StandardInput(asio::io_context& loop) : terminal_(loop), to_rank_(loop) {
  if (::isatty(STDIN_FILENO) != 1) return;
  is_relayed_ = true;
  // In the background, reading would stop the launcher. Opened anew, because non-blocking mode is shared with the
  // shell.
  if (::tcgetpgrp(STDIN_FILENO) != ::getpgrp()) return;
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
  if (is_first) read_on();
  return for_rank_.get();
}

void StandardInput::read_on() {
  terminal_.async_read_some(asio::buffer(buffer_), [this](asio::error_code error, std::size_t size) {
    if (error == asio::error::operation_aborted) return;
    if (error) {  // end of input
      asio::error_code ignored;
      to_rank_.close(ignored);
      terminal_.close(ignored);
      return;
    }
    asio::async_write(to_rank_, asio::buffer(buffer_, size), [this](asio::error_code, std::size_t) {
      // A rank that does not read loses its input; the next attempt's may want it.
      if (terminal_.is_open()) read_on();
    });
  });
}

}  // namespace cohort::tool
