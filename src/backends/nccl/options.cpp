// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/options.h"

#include <cohort/error.h>

#include <fmt/format.h>

namespace cohort::nccl {

namespace {

void read_config(GroupOptions& chosen, const Options& options, int library_version) {
  OptionReader read(options, "nccl's config");
  const auto since = [&](std::string_view name, int version, int& place) {
    if (options.contains(name) && library_version < version) {
      throw ValueError(fmt::format("nccl: config \"{}\" needs NCCL {}; this is {}", name, version_text(version),
                                   version_text(library_version)));
    }
    place = read.get(name, place);
  };
  auto& config = chosen.config;
  since("cga_cluster_size", oldest_version, config.cga_cluster_size);
  since("min_ctas", oldest_version, config.min_ctas);
  since("max_ctas", oldest_version, config.max_ctas);
  since("split_share", oldest_version, config.split_share);
  since("traffic_class", version_with_traffic_class, config.traffic_class);
  since("collnet_enable", version_with_shrink, config.collnet_enable);
  since("cta_policy", version_with_shrink, config.cta_policy);
  since("shrink_share", version_with_shrink, config.shrink_share);
  since("nvls_ctas", version_with_shrink, config.nvls_ctas);
  chosen.net_name = read.get("net_name", std::string());
  if (options.contains("blocking")) {
    throw ValueError("nccl: config \"blocking\" cannot be set: deadlines need a non-blocking communicator");
  }
  read.finish();
}

}  // namespace

Config GroupOptions::config_for(int library_version) const {
  auto fitted = config;
  fitted.net_name = net_name.empty() ? nullptr : net_name.c_str();
  fit(fitted, library_version);
  return fitted;
}

GroupOptions read_options(const Options& options, int library_version) {
  OptionReader read(options, "nccl");
  GroupOptions chosen;
  chosen.is_high_priority_stream = read.get("is_high_priority_stream", false);
  chosen.timing = read.get("timing", false);
  chosen.group_name = read.get("group_name", std::string());
  chosen.global_ranks = read.get("global_ranks_in_group", std::vector<std::int64_t>());
  chosen.split_from = std::static_pointer_cast<ProcessGroup>(read.get_handle("split_from"));
  chosen.split_color = read.get("split_color", 0);
  if (const auto timeout = read.get("_timeout", std::chrono::milliseconds(0)); timeout.count() != 0) {
    if (timeout.count() < 0)
      throw ValueError(fmt::format("nccl: _timeout must not be negative: {} ms", timeout.count()));
    chosen.timeout = timeout;
  }
  read_config(chosen, read.get("config", Options()), library_version);
  read.finish();
  return chosen;
}

}  // namespace cohort::nccl
