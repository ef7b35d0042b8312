// SPDX-License-Identifier: BSD-3-Clause
#include "job.h"

#include <fmt/format.h>

#include <sstream>
#include <stdexcept>

namespace cohort::test {

namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds until(Clock::time_point end) {
  return std::max(std::chrono::milliseconds(0), std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()));
}

}  // namespace

Job::Job(const Hosts& hosts, const Command& program, const JobOptions& options)
    : ranks_per_host_(options.ranks_per_host) {
  const auto secret = folder_ / "secret";
  if (finish({COHORT_TOOL, "secret", secret}).status != 0) throw std::runtime_error("cohort secret failed");
  auto variables = options.variables;
  variables["COHORT_SECRET_FILE"] = secret;
  for (int host = 0; host < hosts.count(); ++host) {
    // Each host has its own ports, so this one is free.
    Command command{COHORT_TOOL,        "run",
                    "--nnodes",         std::to_string(hosts.count()),
                    "--nproc-per-node", std::to_string(ranks_per_host_),
                    "--node-rank",      std::to_string(host),
                    "--master-addr",    Hosts::address(0),
                    "--master-port",    "29500"};
    command.insert(command.end(), options.flags.begin(), options.flags.end());
    command.insert(command.end(), program.begin(), program.end());
    launchers_.emplace_back(command, ProgramOptions{.variables = variables, .network = hosts.network(host)});
  }
}

bool Job::wait_for_all(const std::string& text, std::chrono::seconds at_most) {
  const auto end = Clock::now() + at_most;
  bool all = true;
  for (const auto& each : launchers_) {
    all = all && each.wait_for_output(text, static_cast<std::size_t>(ranks_per_host_), until(end));
  }
  return all;
}

std::vector<int> Job::wait(std::chrono::seconds at_most) {
  const auto end = Clock::now() + at_most;
  std::vector<int> statuses;
  for (auto& each : launchers_) statuses.push_back(each.wait(until(end)).value_or(-1));
  return statuses;
}

std::string Job::output() const {
  std::string all;
  for (std::size_t host = 0; host < launchers_.size(); ++host) {
    all += fmt::format("--- host {}\n{}", host, launchers_[host].output());
  }
  return all;
}

std::vector<std::string> Job::lines_of(int rank) const {
  const auto prefix = fmt::format("[rank {}] ", rank);
  std::vector<std::string> lines;
  std::istringstream text(launchers_[static_cast<std::size_t>(rank / ranks_per_host_)].output());
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with(prefix)) lines.push_back(line.substr(prefix.size()));
  }
  return lines;
}

}  // namespace cohort::test
