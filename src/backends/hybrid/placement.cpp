// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hybrid/placement.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

namespace cohort::hybrid {

Placement::Placement(const std::vector<std::string>& names, int rank) {
  std::map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto [it, is_new] = known.try_emplace(names[i], hosts_.size());
    if (is_new) hosts_.emplace_back();
    hosts_[it->second].push_back(static_cast<int>(i));
  }
  index(rank);
}

Placement::Placement(std::vector<std::vector<int>> hosts, int rank) : hosts_(std::move(hosts)) {
  index(rank);
}

void Placement::index(int rank) {
  std::size_t ranks = 0;
  for (const auto& host : hosts_) ranks += host.size();
  host_of_.resize(ranks);
  local_rank_of_.resize(ranks);
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    for (std::size_t i = 0; i < hosts_[host].size(); ++i) {
      const auto each = static_cast<std::size_t>(hosts_[host][i]);
      host_of_[each] = host;
      local_rank_of_[each] = static_cast<int>(i);
    }
  }
  host_ = host_of(rank);
  local_rank_ = local_rank_of(rank);
}

int Placement::fewest() const {
  std::size_t fewest = hosts_.front().size();
  for (const auto& host : hosts_) fewest = std::min(fewest, host.size());
  return static_cast<int>(fewest);
}

Placement Placement::among(const std::vector<int>& ranks, int rank) const {
  std::vector<std::string> names;
  names.reserve(ranks.size());
  for (const int each : ranks) names.push_back(std::to_string(host_of(each)));
  return {names, rank};
}

std::string host_name_of_this_process(const Env& env) {
  if (const auto given = env.text("COHORT_HOST_ID"); !given.empty()) return fmt::format("given {}", given);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  struct stat network {};
  const bool has_network = ::stat("/proc/self/ns/net", &network) == 0;
  // Without either, nothing is known to be shared: the process counts as a host of its own.
  if (boot.empty() || !has_network) return fmt::format("process {} {}", boot, ::getpid());
  return fmt::format("boot {} user {} network {}:{}", boot, ::geteuid(), network.st_dev, network.st_ino);
}

std::string to_string(const Placement& placement) {
  std::string text = fmt::format("{} host{}:", placement.hosts().size(), placement.hosts().size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < placement.hosts().size(); ++i) {
    const auto& host = placement.hosts()[i];
    text += i == 0 ? " " : " | ";
    for (std::size_t at = 0; at < host.size();) {
      std::size_t last = at;
      while (last + 1 < host.size() && host[last + 1] == host[last] + 1) ++last;
      text += fmt::format("{}{}{}", at == 0 ? "" : ",", host[at], last == at ? "" : fmt::format("-{}", host[last]));
      at = last + 1;
    }
  }
  return text;
}

}  // namespace cohort::hybrid
