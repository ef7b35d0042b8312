// SPDX-License-Identifier: BSD-3-Clause
//
// Collects what DdpLoggingData shows: at construction, and of sampled iterations.
#pragma once

#include <cohort/torch/ddp_logging.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "torch/ddp/reducer.h"

namespace cohort::ddp {

class Logger {
 public:
  void set(const std::string& name, std::string text);
  void set(const std::string& name, std::int64_t number);
  /// Once for each forward that synchronises: what the iteration before took.
  void sample(const Reducer& reducer);
  void set_error(const std::string& what, std::uint64_t iteration);
  /// A ValueError below 1.
  void set_sample_rate(int rate);
  /// The variables that the group's backend may be set by.
  void read_environment(const std::string& backend);
  DdpLoggingData data(const Reducer* reducer) const;

 private:
  void average(const std::string& name, std::int64_t value);

  mutable std::mutex mutex_;
  DdpLoggingData data_;
  std::map<std::string, std::int64_t> samples_;
  std::int64_t sample_rate_ = 100;
};

}  // namespace cohort::ddp
