// SPDX-License-Identifier: BSD-3-Clause
//
// A switch in user space, for the conditions that `tc netem` creates where the kernel has it: every frame is forwarded
// with a delay, and some are dropped. TCP retransmits over it as it does on a real network.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "core/file_descriptor.h"
#include "hosts.h"

namespace cohort::test {

struct NetworkConditions {
  std::chrono::milliseconds delay{0};  ///< in each direction
  double loss = 0;                     ///< fraction of the frames that are dropped, from a fixed seed
};

class Relay {
 public:
  /// The hosts must have no other switch.
  Relay(const Hosts& hosts, NetworkConditions conditions);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// From now on nothing is forwarded to this host or from it, though its link is up.
  void silence(int host) { silent_.fetch_or(1U << static_cast<unsigned>(host)); }
  std::uint64_t lost() const { return lost_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Frame {
    Clock::time_point due{};
    std::size_t from = 0;
    std::vector<std::byte> bytes{};
  };
  void work();
  void take(std::size_t port);
  void hand_on(const Frame& frame);

  const NetworkConditions conditions_;
  std::vector<FileDescriptor> ports_;
  FileDescriptor stop_;
  std::deque<Frame> under_way_;  ///< in the order of their times, since all have the same delay
  std::vector<std::byte> room_;
  std::mt19937 random_{7};
  std::atomic<unsigned> silent_{0};
  std::atomic<std::uint64_t> lost_{0};
  std::thread thread_;
};

}  // namespace cohort::test
