// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>

#include "model/explorer.h"

namespace cohort::model {

/// The policy that runs code templated on its atomics under the explorer. `Atomics::pause()` must be called in every
/// round of a wait loop; deadlines never expire.
struct ModelAtomics {
  template <class T>
  using Atomic = model::Atomic<T>;
  template <class T>
  using Plain = model::Plain<T>;

  static void pause() { model::pause(); }
  /// The effect of a fence that the kernel completes on demand.
  static void light_fence() { model::fence(std::memory_order_seq_cst); }
  static void heavy_fence() { model::fence(std::memory_order_seq_cst); }
  template <class Deadline>
  static void futex_wait(Atomic<std::uint32_t>& word, std::uint32_t expected, const Deadline&) {
    model::futex_wait(word, expected);
  }
  static void futex_wake(Atomic<std::uint32_t>& word) { model::futex_wake(word); }
};

}  // namespace cohort::model
