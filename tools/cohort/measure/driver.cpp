// SPDX-License-Identifier: BSD-3-Clause
#include "measure/driver.h"

#include <cohort/deadline.h>
#include <cohort/error.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <exception>
#include <thread>
#include <vector>

#include "common/pipe.h"
#include "measure/child.h"
#include "measure/measure.h"

namespace cohort::bench {

std::optional<std::string> LineReader::next() {
  bool timed_out = false;
  return next(-1, timed_out);
}

std::optional<std::string> LineReader::next(int milliseconds, bool& timed_out) {
  timed_out = false;
  const auto deadline = milliseconds < 0 ? Deadline::never() : Deadline::after(std::chrono::milliseconds(milliseconds));
  for (;;) {
    if (const auto end = pending_.find('\n'); end != std::string::npos) {
      auto line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    pollfd ready{fd_, POLLIN, 0};
    const int polled = ::poll(&ready, 1, deadline.poll_timeout());
    if (polled == 0) {
      timed_out = true;
      return std::nullopt;
    }
    std::array<char, 4096> buffer;
    const auto n = polled < 0 ? -1 : ::read(fd_, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    pending_.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

bool write_line(int fd, std::string_view line) {
  const auto text = fmt::format("{}\n", line);
  for (std::size_t written = 0; written < text.size();) {
    const auto n = ::write(fd, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    written += static_cast<std::size_t>(n);
  }
  return true;
}

void serve(System& system, const NextLine& next) {
  const auto answer = [&](std::string_view line) {
    if (system.rank() == 0) write_line(STDOUT_FILENO, line);
  };
  answer(ready_line);
  while (const auto line = next()) {
    try {
      if (*line == release_line) {
        system.release();
        answer(to_line(Answer{.microseconds = {0}}));
      } else {
        answer(to_line(measure(system, parse_command(*line))));
      }
    } catch (const std::exception& e) {
      answer(to_line(Answer{.error = fmt::format("rank {}: {}", system.rank(), e.what())}));
      throw;
    }
  }
}

namespace {

/// Rank 0's lines, passed on to the others.
NextLine distributing(std::vector<int> others) {
  return [others = std::move(others), reader = LineReader(STDIN_FILENO)]() mutable {
    auto line = reader.next();
    if (line) {
      for (const int other : others) write_line(other, *line);
    }
    return line;
  };
}

NextLine reading(int fd) {
  return [reader = LineReader(fd)]() mutable { return reader.next(); };
}

/// Throws an Error that names the rank.
void be_rank(int rank, const MakeSystem& make, const NextLine& next) {
  try {
    const auto system = make(rank);
    serve(*system, next);
  } catch (const std::exception& e) {
    throw Error(fmt::format("rank {}: {}", rank, e.what()));
  }
}

/// The exit code.
int report(const std::string& failure) {
  if (failure.empty()) return 0;
  fmt::print(stderr, "{}\n", failure);
  return 1;
}

std::string failure_of(int rank, const MakeSystem& make, const NextLine& next) {
  try {
    be_rank(rank, make, next);
    return {};
  } catch (const Error& e) {
    return e.what();
  }
}

int drive_threads(int size, const MakeSystem& make) {
  std::vector<FileDescriptor> ends;
  std::vector<std::thread> ranks;
  std::vector<std::string> failures(static_cast<std::size_t>(size));
  for (int rank = 1; rank < size; ++rank) {
    auto pipe = tool::make_pipe();
    ends.push_back(std::move(pipe.writing));
    ranks.emplace_back([&failures, &make, rank, end = std::move(pipe.reading)] {
      failures[static_cast<std::size_t>(rank)] = failure_of(rank, make, reading(end.get()));
    });
  }
  std::vector<int> lines;
  lines.reserve(ends.size());
  for (const auto& end : ends) lines.push_back(end.get());
  failures[0] = failure_of(0, make, distributing(std::move(lines)));
  ends.clear();
  for (auto& rank : ranks) rank.join();
  int code = 0;
  for (const auto& failure : failures) code |= report(failure);
  return code;
}

/// Ends this process, which is rank 0, soon after another rank has failed: rank 0 might wait for it until its deadline.
class FailureWatch {
 public:
  /// `ranks` are those from 1 on.
  explicit FailureWatch(const std::vector<Child>& ranks) : stop_(tool::make_pipe()) {
    for (const auto& rank : ranks) {
      pids_.push_back(rank.pid());
      ends_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, rank.pid(), 0)));
    }
    thread_ = std::thread([this] { watch(); });
  }
  ~FailureWatch() {
    stop_.writing.reset();
    thread_.join();
  }
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

 private:
  /// For rank 0 to find out by itself, since it may know more.
  static constexpr int patience_ms = 1000;

  void watch() const {
    std::vector<pollfd> awaited{{stop_.reading.get(), POLLIN, 0}};
    for (const auto& end : ends_) awaited.push_back({end.get(), POLLIN, 0});
    for (;;) {
      while (::poll(awaited.data(), awaited.size(), -1) < 0 && errno == EINTR) {
      }
      if (awaited.front().revents != 0) return;
      for (std::size_t i = 1; i < awaited.size(); ++i) {
        if (awaited[i].revents == 0) continue;
        awaited[i].fd = -1;
        const auto status = tool::wait_for_end(pids_[i - 1], tool::Reap::keep);
        if (status.is_success()) continue;
        if (::poll(awaited.data(), 1, patience_ms) > 0) return;
        report(fmt::format("rank {} {}", i, to_string(status)));
        ::_exit(1);
      }
    }
  }

  tool::Pipe stop_;
  std::vector<pid_t> pids_;
  std::vector<FileDescriptor> ends_;
  std::thread thread_;
};

int drive_processes(int size, const MakeSystem& make) {
  std::vector<Child> others;
  std::vector<int> lines;
  for (int rank = 1; rank < size; ++rank) {
    others.emplace_back([&make, rank](Channel& parent) { be_rank(rank, make, reading(parent.fd())); });
    lines.push_back(others.back().channel().fd());
  }
  int code = 0;
  {
    const FailureWatch watch(others);
    code = report(failure_of(0, make, distributing(std::move(lines))));
  }
  const bool has_failed = code != 0;
  for (auto& other : others) {
    other.channel().end();                         // all of them first, so that they end together
    if (has_failed) ::kill(other.pid(), SIGTERM);  // it may wait for rank 0 until its deadline
  }
  for (int rank = 1; rank < size; ++rank) {
    const auto status = others[static_cast<std::size_t>(rank - 1)].end();
    // A rank that was killed could not say so itself.
    if (status.signal != 0 && !has_failed) report(fmt::format("rank {} {}", rank, to_string(status)));
    if (!status.is_success()) code = 1;
  }
  return code;
}

}  // namespace

int drive(int size, RanksAre kind, const MakeSystem& make) {
  (void)::signal(SIGPIPE, SIG_IGN);
  return kind == RanksAre::threads ? drive_threads(size, make) : drive_processes(size, make);
}

}  // namespace cohort::bench
