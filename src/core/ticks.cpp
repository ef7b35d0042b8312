// SPDX-License-Identifier: BSD-3-Clause
#include "core/ticks.h"

namespace cohort {

TickClock::TickClock() : start_(read()) {}

/// The best of a few readings: one that an interrupt delayed would distort the scale.
TickClock::Reading TickClock::read() {
  constexpr int attempts = 5;
  Reading best{};
  std::uint64_t narrowest = ~std::uint64_t{0};
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const auto before = ticks();
    const auto time = std::chrono::steady_clock::now();
    const auto width = ticks() - before;
    if (width < narrowest) {
      narrowest = width;
      best = {before + width / 2, time};
    }
  }
  return best;
}

TickScale TickClock::scale() const {
  using std::chrono::duration;
  using std::chrono::duration_cast;
  using std::chrono::nanoseconds;
  const auto now = read();
  const auto ns = duration<double, std::nano>(now.time - start_.time).count();
  const auto counted = static_cast<double>(now.ticks - start_.ticks);
  // The steady clock gives the rate, since the wall clock may be set; the wall clock gives only the time of day.
  const auto since_reading = duration_cast<nanoseconds>(std::chrono::steady_clock::now() - now.time).count();
  const auto epoch = duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return {now.ticks, epoch - since_reading, counted > 0 && ns > 0 ? ns / counted : 1.0};
}

}  // namespace cohort
