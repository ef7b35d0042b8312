// SPDX-License-Identifier: BSD-3-Clause
#include "progress.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>

namespace gpt {

using namespace std::chrono_literals;

Progress::Progress(bool is_visible, bool in_place, int steps, int tokens_per_step)
    : is_visible_(is_visible), steps_(steps), tokens_per_step_(tokens_per_step) {
  if (!is_visible || (!in_place && ::isatty(STDOUT_FILENO) != 1)) return;
  // Under a launcher this process is in the background, and a terminal with `stty tostop` would stop it for writing.
  ::signal(SIGTTOU, SIG_IGN);
  terminal_ = ::open("/dev/tty", O_WRONLY | O_CLOEXEC | O_NOCTTY);
}

Progress::~Progress() {
  if (terminal_ >= 0) ::close(terminal_);
}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - started_).count();
}

double Progress::tokens_per_second() const {
  return static_cast<double>(done_) * tokens_per_step_ / seconds();
}

std::string Progress::bar() const {
  constexpr int width = 16;
  const auto full = static_cast<std::size_t>(width * done_ / steps_);
  return '[' + std::string(full, '#') + std::string(width - full, '.') + "] ";
}

void Progress::show_in_place(const std::string& line) const {
  // A line that wraps could not be written over.
  winsize size{};
  const std::size_t columns = ::ioctl(terminal_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  const auto text = "\r\x1b[K" + line.substr(0, columns - 1);  // to the line's start, and erase what was there
  [[maybe_unused]] const auto written = ::write(terminal_, text.data(), text.size());
}

void Progress::step(int step, double loss, const std::string& extra) {
  done_ = step + 1;
  if (!is_visible_) return;
  std::array<char, 160> line{};
  std::snprintf(line.data(), line.size(), "step %d/%d  loss %.3f  %.0f tokens/s%s", done_, steps_, loss,
                tokens_per_second(), extra.c_str());
  const bool is_last = done_ == steps_;
  if (terminal_ >= 0) {
    const auto now = Clock::now();
    if (!is_last && now - shown_ > 100ms) {
      shown_ = now;
      const auto left = static_cast<int>(seconds() / done_ * (steps_ - done_)) + 1;
      show_in_place(bar() + std::to_string(left) + " s left  " + line.data());
    }
    if (!is_last) return;
    show_in_place("");  // the last line is an ordinary one
  }
  if (done_ == 1 || is_last || done_ % std::max(1, steps_ / 10) == 0) std::cout << line.data() << std::endl;
}

}  // namespace gpt
