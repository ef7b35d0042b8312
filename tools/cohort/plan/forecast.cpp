// SPDX-License-Identifier: BSD-3-Clause
#include "plan/forecast.h"

#include <algorithm>
#include <bit>

namespace cohort::plan {

namespace {

std::vector<int> default_worlds(int recorded) {
  constexpr std::size_t doubles = 6;
  std::vector<int> worlds{recorded};
  while (worlds.size() <= doubles && worlds.back() <= (1 << 24)) worlds.push_back(2 * worlds.back());
  return worlds;
}

/// Powers of 4 between the smallest bucket and all of them; in between, step times hardly differ.
std::vector<std::size_t> default_buckets(const BucketBytes& recorded) {
  std::vector<std::size_t> sizes;
  for (auto size = std::max(std::bit_floor(recorded.smallest), std::size_t{1024}); size < recorded.all; size *= 4) {
    sizes.push_back(size);
    if (size > recorded.all / 4) break;  // the next one would be more than all, and perhaps more than a number holds
  }
  sizes.push_back(recorded.all);
  return sizes;
}

}  // namespace

const BucketForecast* WorldForecast::best() const {
  const auto found = std::min_element(
      buckets.begin(), buckets.end(),
      [](const BucketForecast& a, const BucketForecast& b) { return a.prediction.step < b.prediction.step; });
  return found == buckets.end() ? nullptr : &*found;
}

std::vector<WorldForecast> forecast(const StepModel& model, const Cluster& cluster, const ForecastOptions& options) {
  const auto recorded = bucket_bytes(model);
  auto sizes = options.buckets;
  if (sizes.empty() && recorded.all > 0) sizes = default_buckets(recorded);
  if (recorded.all == 0 || !model.has_times) sizes.clear();
  std::vector<WorldForecast> forecasts;
  for (const int world : options.worlds.empty() ? default_worlds(model.world()) : options.worlds) {
    const auto step = model.groups.empty()
                          ? model
                          : resized(model, options.growing.value_or(outermost_group(model)), world, options.parts);
    WorldForecast result{.world = world, .as_recorded = predict(step, cluster, options.compute_scale)};
    for (const auto size : sizes) {
      result.buckets.push_back({size, predict(with_buckets(step, size), cluster, options.compute_scale)});
    }
    forecasts.push_back(std::move(result));
  }
  return forecasts;
}

}  // namespace cohort::plan
