// SPDX-License-Identifier: BSD-3-Clause
#include "measure/interleaved.h"

#include <algorithm>

#include "measure/statistics.h"

namespace cohort::bench {

Interleaved interleave(const std::function<double(int which, int repeats)>& time, int rounds,
                       const std::function<int(int repeats)>& agree) {
  constexpr double round_us = 1000;
  time(0, 3);
  const double once = std::max(time(0, 5), 0.01);
  const int repeats = agree(std::clamp(static_cast<int>(round_us / once), 1, 2000));
  time(1, repeats);
  const auto figures = take_turns(2, rounds, [&](std::size_t which) { return time(static_cast<int>(which), repeats); });
  return {.first = median(figures[0]),
          .second = median(figures[1]),
          .ratio = median_ratio(figures[1], figures[0]),
          .difference = median_difference(figures[1], figures[0])};
}

Row overhead_row(const std::string& what, std::size_t bytes, const Interleaved& measured, const std::string& library) {
  constexpr std::size_t large = std::size_t{64} << 10U;
  Row row{.what = what, .unit = "us", .ours = measured.second, .peer = measured.first, .peer_name = library};
  if (bytes >= large) {
    row.ratio = measured.ratio;
    row.bar = Bar{Bar::Kind::at_most, 1.05};
  } else {
    row.difference = measured.difference;
    row.bar = Bar{Bar::Kind::at_most, 3};
  }
  return row;
}

}  // namespace cohort::bench
