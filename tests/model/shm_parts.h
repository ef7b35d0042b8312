// SPDX-License-Identifier: BSD-3-Clause
//
// What the templates of src/backends/shm require, small enough to be explored: a wait monitor and a board.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "backends/shm/protocol/flags.h"
#include "backends/shm/protocol/posts.h"
#include "model/explorer.h"

namespace cohort::model {

/// Reads once and sleeps from then on: the shortest wait that does both.
class ShortWatch {
 public:
  void waits_for(int peer) { peer_ = peer; }
  shm::Pace next(std::uint32_t round) {
    require(peer_ >= 0, "a wait says for whom it is");
    return round == 0 ? shm::Pace::look : shm::Pace::sleep;
  }
  std::chrono::nanoseconds max_sleep() const { return std::chrono::nanoseconds::max(); }

 private:
  int peer_ = -1;
};

template <class Atomics>
void name_flag(const shm::Flag<Atomics>& flag, const std::string& text) {
  name(flag.value, text);
  name(flag.sleepers, text + ".sleepers");
}

/// `depth` is that of each rank's ring of posts; any value other than post_depth is wrong on purpose.
template <class Atomics, int ranks, std::uint32_t depth = shm::post_depth>
class PostBoard {
 public:
  struct Slot {
    shm::Flag<Atomics> flag;
    Plain<int> payload{0};
  };

  PostBoard() {
    for (int rank = 0; rank < ranks; ++rank) {
      for (std::uint32_t k = 0; k < depth; ++k) {
        const auto number = std::to_string(rank) + "." + std::to_string(k);
        name_flag(post(rank, k).flag, "post " + number);
        name(post(rank, k).payload, "payload " + number);
      }
    }
  }
  Slot& post(int rank, std::uint32_t k) { return slots_[static_cast<std::size_t>(rank)][k % depth]; }

 private:
  std::array<std::array<Slot, depth>, static_cast<std::size_t>(ranks)> slots_;
};

}  // namespace cohort::model
