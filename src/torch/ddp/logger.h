// SPDX-License-Identifier: BSD-3-Clause
//
// Collects what DdpLoggingData shows: facts at construction, and statistics of sampled iterations.
#pragma once

#include <cohort/torch/ddp.h>
#include <cohort/torch/ddp_logging.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "torch/ddp/reducer.h"
#include "torch/ddp/selection.h"

namespace cohort::ddp {

/// May be called from any thread. It never calls the reducer while it holds its own lock.
class Logger {
 public:
  void set(const std::string& name, std::string text);
  void set(const std::string& name, std::int64_t number);
  /// At construction: what was wrapped, and how.
  void describe(const std::string& module, const DdpOptions& options, const Selection& selection,
                const Reducer& reducer, std::size_t bucket_cap);
  /// Called once for each forward that synchronises: records the times of the iteration before.
  void sample(const Reducer& reducer);
  void set_error(const std::string& what, std::uint64_t iteration);
  /// A rate below 1 is a ValueError.
  void set_sample_rate(int rate);
  DdpLoggingData data(const Reducer* reducer) const;

 private:
  /// The environment variables that configure the group's backend.
  void read_environment(const std::string& backend);
  bool is_sampled(std::int64_t iteration) const;
  void average(const std::string& name, std::int64_t value);

  mutable std::mutex mutex_;
  DdpLoggingData data_;
  std::map<std::string, std::int64_t> samples_;
  std::int64_t sample_rate_ = 100;
};

}  // namespace cohort::ddp
