// SPDX-License-Identifier: BSD-3-Clause
#include "measure/driver.h"

#include <cohort/deadline.h>
#include <cohort/hash_store.h>
#include <cohort/prefix_store.h>
#include <cohort/rendezvous.h>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <exception>
#include <thread>
#include <vector>

#include "measure/measure.h"

namespace cohort::measure {

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
        answer(to_line(answer_to(system, parse_command(*line))));
      }
    } catch (const std::exception& e) {
      answer(to_line(Answer{.error = fmt::format("rank {}: {}", system.rank(), e.what())}));
      throw;
    }
  }
}

namespace {

/// Rank 0's input for all ranks. Those who wait for it sleep in the store.
class SharedInput {
 public:
  SharedInput(StorePtr store, int rank)
      : store_(std::make_shared<PrefixStore>("bench/input", std::move(store))), rank_(rank) {}

  std::optional<std::string> next() {
    const auto key = fmt::to_string(number_++);
    if (rank_ == 0) {
      auto line = reader_.next();
      store_->set(key, line.value_or(end));
      return line;
    }
    auto line = store_->get(key, std::chrono::hours(24));
    return line == end ? std::nullopt : std::optional(std::move(line));
  }
  void finish() { store_->set(fmt::to_string(number_), end); }

 private:
  static constexpr auto end = "end of input";

  StorePtr store_;
  int rank_;
  int number_ = 0;
  LineReader reader_{STDIN_FILENO};
};

/// The exit code.
int be_rank(int rank, int size, SharedInput& input, const MakeSystem& make) {
  try {
    serve(*make(rank, size), [&] { return input.next(); });
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "rank {}: {}\n", rank, e.what());
    return 1;
  }
}

}  // namespace

int drive(const MakeSystem& make) {
  (void)::signal(SIGPIPE, SIG_IGN);
  const auto [store, rank, size] = rendezvous("env://");
  SharedInput input(store->clone(), rank);
  return be_rank(rank, size, input, make);
}

int drive_threads(int size, const MakeSystem& make) {
  (void)::signal(SIGPIPE, SIG_IGN);
  const auto store = std::make_shared<HashStore>();
  std::atomic<int> code{0};
  std::vector<std::jthread> others;
  for (int rank = 1; rank < size; ++rank) {
    others.emplace_back([&, rank] {
      SharedInput input(store, rank);
      code |= be_rank(rank, size, input, make);
    });
  }
  SharedInput input(store, 0);
  code |= be_rank(0, size, input, make);
  input.finish();  // where rank 0 has failed
  others.clear();
  return code;
}

}  // namespace cohort::measure
