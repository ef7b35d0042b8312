// SPDX-License-Identifier: BSD-3-Clause
#include "driver.h"

#include <cohort/deadline.h>
#include <cohort/error.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "../pipe.h"
#include "measure.h"

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

using tool::make_pipe;

/// Rank 0's lines, handed on to the others.
NextLine distributing(const std::vector<FileDescriptor>& others) {
  return [&others, reader = LineReader(STDIN_FILENO)]() mutable {
    auto line = reader.next();
    if (line) {
      for (const auto& other : others) write_line(other.get(), *line);
    }
    return line;
  };
}

NextLine reading(int fd) {
  return [reader = LineReader(fd)]() mutable { return reader.next(); };
}

/// Returns what went wrong; empty: nothing.
std::string be_rank(int rank, const MakeSystem& make, const NextLine& next) {
  try {
    const auto system = make(rank);
    serve(*system, next);
  } catch (const std::exception& e) {
    return fmt::format("rank {}: {}", rank, e.what());
  }
  return {};
}

int report(const std::string& failure) {
  if (failure.empty()) return 0;
  fmt::print(stderr, "{}\n", failure);
  return 1;
}

int drive_threads(int size, const MakeSystem& make) {
  std::vector<FileDescriptor> ends;
  std::vector<std::thread> ranks;
  std::vector<std::string> failures(static_cast<std::size_t>(size));
  for (int rank = 1; rank < size; ++rank) {
    auto pipe = make_pipe();
    ends.push_back(std::move(pipe.writing));
    ranks.emplace_back([&failures, &make, rank, end = std::move(pipe.reading)] {
      failures[static_cast<std::size_t>(rank)] = be_rank(rank, make, reading(end.get()));
    });
  }
  failures[0] = be_rank(0, make, distributing(ends));
  ends.clear();
  for (auto& rank : ranks) rank.join();
  int code = 0;
  for (const auto& failure : failures) code |= report(failure);
  return code;
}

struct RankProcess {
  pid_t pid = -1;
  int rank = 0;
};

/// What became of the ranks; those that were killed say nothing themselves.
int collect(const std::vector<RankProcess>& ranks) {
  int code = 0;
  for (const auto& rank : ranks) {
    int status = 0;
    while (::waitpid(rank.pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) {
      code |= report(fmt::format("rank {} was killed by SIG{}", rank.rank, ::sigabbrev_np(WTERMSIG(status))));
    } else if (WEXITSTATUS(status) != 0) {
      code = 1;
    }
  }
  return code;
}

int drive_processes(int size, const MakeSystem& make) {
  std::vector<FileDescriptor> ends;
  std::vector<RankProcess> ranks;
  const auto parent = ::getpid();
  for (int rank = 1; rank < size; ++rank) {
    auto pipe = make_pipe();
    const auto pid = ::fork();
    if (pid < 0) throw Error(fmt::format("cannot start rank {}: {}", rank, std::generic_category().message(errno)));
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ends.clear();  // else the others would not see rank 0 leave
      pipe.writing.reset();
      const int code = report(be_rank(rank, make, reading(pipe.reading.get())));
      // Not exit(): rank 0's objects are not ours to destroy.
      ::_exit(code);
    }
    ends.push_back(std::move(pipe.writing));
    ranks.push_back({pid, rank});
  }
  const int code = report(be_rank(0, make, distributing(ends)));
  ends.clear();
  return code | collect(ranks);
}

}  // namespace

int drive(int size, RanksAre kind, const MakeSystem& make) {
  (void)::signal(SIGPIPE, SIG_IGN);
  return kind == RanksAre::threads ? drive_threads(size, make) : drive_processes(size, make);
}

}  // namespace cohort::bench
