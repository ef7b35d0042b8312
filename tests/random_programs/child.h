// SPDX-License-Identifier: BSD-3-Clause
//
// A child process whose output is collected, and which is ended when its time is up.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace cohort::random_programs {

class Child {
 public:
  /// The child runs `body` with the pipe's end to write to, and exits with its result.
  explicit Child(const std::function<int(int out)>& body) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("pipe failed");
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      int status = 99;
      try {
        status = body(ends[1]);
      } catch (const std::exception& e) {
        // The status tells; the parent has no use for the text of a child that could not even begin.
        static_cast<void>(!::write(STDERR_FILENO, e.what(), std::string_view(e.what()).size()));
      }
      ::_exit(status);
    }
    ::close(ends[1]);
    in_ = ends[0];
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), in_(std::exchange(other.in_, -1)), output_(std::move(other.output_)) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (in_ >= 0) ::close(in_);
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }

  /// Waits until the child has ended, and returns its status, or 128 + the signal that ended it. After the deadline the
  /// child is ended, first with a request that a launcher passes on, and the result is nullopt.
  std::optional<int> finish(std::chrono::steady_clock::time_point deadline) {
    if (read_until(deadline)) return wait();
    ::kill(pid_, SIGTERM);
    if (!read_until(std::chrono::steady_clock::now() + std::chrono::seconds(5))) ::kill(pid_, SIGKILL);
    wait();
    return {};
  }
  /// What it wrote, complete after finish().
  const std::string& output() const { return output_; }

 private:
  /// False: the deadline has passed.
  bool read_until(std::chrono::steady_clock::time_point deadline) {
    for (;;) {
      const auto left = deadline - std::chrono::steady_clock::now();
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
      if (ms <= 0) return false;
      pollfd waiting{.fd = in_, .events = POLLIN, .revents = 0};
      if (::poll(&waiting, 1, static_cast<int>(ms)) <= 0) continue;
      std::array<char, 4096> buffer{};
      const auto n = ::read(in_, buffer.data(), buffer.size());
      if (n == 0) return true;
      if (n > 0) output_.append(buffer.data(), static_cast<std::size_t>(n));
    }
  }
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  pid_t pid_ = -1;
  int in_ = -1;
  std::string output_;
};

}  // namespace cohort::random_programs
