// SPDX-License-Identifier: BSD-3-Clause
//
// Policies that break code templated on its atomics without changing it: what it asks for is weakened or omitted. A
// test of such code is meaningful if it fails with each of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "model/model_atomics.h"

namespace cohort::model {

enum class Weakness : std::uint8_t {
  none,
  no_light_fence,  ///< the raiser may look for sleepers too early
  no_heavy_fence,  ///< the sleeper may read the flag too early
  no_release,      ///< stores publish nothing
  no_acquire,      ///< loads learn nothing
  no_wake,         ///< nobody is woken
};

template <Weakness weakness>
struct WeakAtomics {
  template <class T>
  class Atomic : public model::Atomic<T> {
   public:
    using model::Atomic<T>::Atomic;

    T load(std::memory_order order) const {
      return model::Atomic<T>::load(weakness == Weakness::no_acquire ? std::memory_order_relaxed : order);
    }
    void store(T value, std::memory_order order) {
      model::Atomic<T>::store(value, weakness == Weakness::no_release ? std::memory_order_relaxed : order);
    }
  };

  static void pause() { model::pause(); }
  static void light_fence() {
    if constexpr (weakness != Weakness::no_light_fence) ModelAtomics::light_fence();
  }
  static void heavy_fence() {
    if constexpr (weakness != Weakness::no_heavy_fence) ModelAtomics::heavy_fence();
  }
  template <class Deadline>
  static void futex_wait(Atomic<std::uint32_t>& word, std::uint32_t expected, const Deadline& /*deadline*/) {
    model::futex_wait(word, expected);
  }
  static void futex_wake(Atomic<std::uint32_t>& word) {
    if constexpr (weakness != Weakness::no_wake) model::futex_wake(word);
  }
};

}  // namespace cohort::model
