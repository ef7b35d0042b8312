// SPDX-License-Identifier: BSD-3-Clause
#include "hosts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "program.h"

namespace cohort::test {

namespace {

constexpr auto name_prefix = "cohort-test-";

void ip(const std::string& arguments) {
  const auto result = finish({"sh", "-c", "exec ip " + arguments});
  if (result.status != 0) throw std::runtime_error(fmt::format("ip {}: {}", arguments, result.output));
}

/// Whether it is cohort-test-PID-NAME of a process that no longer exists.
bool is_stale(const std::string& name) {
  if (!name.starts_with(name_prefix)) return false;
  const auto number = name.substr(std::string(name_prefix).size());
  return !std::filesystem::exists("/proc/" + number.substr(0, number.find('-')));
}

void remove_stale() {
  std::error_code none;
  for (const auto& each : std::filesystem::directory_iterator("/run/netns", none)) {
    const auto name = each.path().filename().string();
    if (is_stale(name)) ip("netns delete " + name);
  }
}

std::string find_what_is_missing() {
  if (::geteuid() != 0) return "several hosts on one machine need root, for network namespaces";
  if (!is_installed("ip")) return "the program ip is not installed (iproute2)";
  try {
    const Hosts trial(1);
  } catch (const std::exception& e) {
    return fmt::format("this machine does not permit network namespaces: {}", e.what());
  }
  return {};
}

}  // namespace

Hosts::Hosts(int count, Switch how) : count_(count) {
  remove_stale();
  try {
    build(how);
  } catch (...) {
    remove();
    throw;
  }
}

Hosts::~Hosts() {
  remove();
}

const std::string& Hosts::what_is_missing() {
  static const auto answer = find_what_is_missing();
  return answer;
}

std::string Hosts::host_name(int host) const {
  return fmt::format("{}{}-{}", name_prefix, ::getpid(), host);
}

std::string Hosts::switch_name() const {
  return fmt::format("{}{}-switch", name_prefix, ::getpid());
}

void Hosts::build(Switch how) const {
  const auto middle = switch_name();
  ip("netns add " + middle);
  if (how == Switch::bridge) {
    ip(fmt::format("-n {} link add bridge type bridge", middle));
    ip(fmt::format("-n {} link set bridge up", middle));
  }
  for (int host = 0; host < count_; ++host) {
    const auto name = host_name(host);
    ip("netns add " + name);
    ip(fmt::format("link add eth0 netns {} type veth peer name {} netns {}", name, port(host), middle));
    ip(fmt::format("-n {} address add {}/24 dev eth0", name, address(host)));
    ip(fmt::format("-n {} link set lo up", name));
    ip(fmt::format("-n {} link set eth0 up", name));
    if (how == Switch::bridge) ip(fmt::format("-n {} link set {} master bridge", middle, port(host)));
    ip(fmt::format("-n {} link set {} up", middle, port(host)));
  }
}

void Hosts::remove() const {
  std::error_code none;
  const auto remove_one = [&](const std::string& name) {
    if (std::filesystem::exists(path_of(name), none)) finish({"ip", "netns", "delete", name});
  };
  for (int host = 0; host < count_; ++host) remove_one(host_name(host));
  remove_one(switch_name());
}

void Hosts::cut_off(int host) const {
  ip(fmt::format("-n {} link set {} down", switch_name(), port(host)));
}

}  // namespace cohort::test
