// SPDX-License-Identifier: BSD-3-Clause
#include "progress.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

namespace gpt {

using namespace std::chrono_literals;

Progress::Progress(bool visible, int steps, int tokens_per_step)
    : visible_(visible), steps_(steps), tokens_per_step_(tokens_per_step) {
  if (!visible) return;
  if (::isatty(STDOUT_FILENO) == 1) {
    terminal_ = STDOUT_FILENO;
    return;
  }
  // Under a launcher the output is a pipe, but there may be a terminal at its end. This process is in the background
  // there, and some users' terminals stop those who write from the background, which would be a poor ending.
  ::signal(SIGTTOU, SIG_IGN);
  terminal_ = ::open("/dev/tty", O_WRONLY | O_CLOEXEC | O_NOCTTY);
  own_terminal_ = terminal_ >= 0;
}

Progress::~Progress() {
  if (own_terminal_) ::close(terminal_);
}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - started_).count();
}

double Progress::tokens_per_second() const {
  return static_cast<double>(done_) * tokens_per_step_ / seconds();
}

void Progress::step(int step, double loss, const std::string& extra) {
  done_ = step + 1;
  if (!visible_) return;
  char line[160];
  std::snprintf(line, sizeof line, "step %d/%d  loss %.3f  %.0f tokens/s%s", done_, steps_, loss, tokens_per_second(),
                extra.c_str());
  const bool last = done_ == steps_;
  const auto now = Clock::now();
  if (terminal_ >= 0 && (last || now - shown_ > 100ms)) {
    shown_ = now;
    // To the line's start, and what was there goes; the last one leaves it empty.
    const auto text = "\r\x1b[K" + (last ? std::string() : std::string(line));
    [[maybe_unused]] const auto written = ::write(terminal_, text.data(), text.size());
  }
  if (done_ == 1 || last || done_ % std::max(1, steps_ / 10) == 0) {
    if (terminal_ >= 0 && !last) {
      [[maybe_unused]] const auto written = ::write(terminal_, "\r\x1b[K", 4);
    }
    std::cout << line << std::endl;
  }
}

}  // namespace gpt
