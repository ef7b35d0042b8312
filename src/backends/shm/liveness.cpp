// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/liveness.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace cohort::shm {

Liveness::Liveness(std::span<const pid_t> pids, int own) {
  for (std::size_t i = 0; i < pids.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (rank == own) continue;
    FileDescriptor fd(static_cast<int>(::syscall(SYS_pidfd_open, pids[i], 0)));  // close-on-exec by default
    if (fd) {
      watched_.push_back({rank, std::move(fd)});
    } else if (errno == ESRCH) {
      gone_.push_back(rank);
    } else {
      throw BackendError(fmt::format("shm: cannot watch rank {} (pid {}): pidfd_open: {}", rank, pids[i],
                                     std::generic_category().message(errno)));
    }
  }
}

std::vector<int> Liveness::dead() {
  std::vector<pollfd> polled;
  polled.reserve(watched_.size());
  for (const auto& each : watched_) polled.push_back({.fd = each.fd.get(), .events = POLLIN, .revents = 0});
  if (::poll(polled.data(), polled.size(), 0) > 0) {
    for (std::size_t i = polled.size(); i-- > 0;) {
      if (polled[i].revents == 0) continue;
      gone_.push_back(watched_[i].rank);
      watched_.erase(watched_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    std::sort(gone_.begin(), gone_.end());
  }
  return gone_;
}

bool Liveness::is_dead(int rank) {
  const auto gone = dead();
  return std::find(gone.begin(), gone.end(), rank) != gone.end();
}

}  // namespace cohort::shm
