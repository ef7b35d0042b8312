// SPDX-License-Identifier: BSD-3-Clause
#include "plan/cluster.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/parse.h"

namespace cohort::plan {

namespace {

using nlohmann::json;

constexpr double micro = 1e-6;
constexpr double giga = 1e9;
constexpr std::array<std::string_view, 3> algorithm_names{"best", "ring", "tree"};

Link link_of(double alpha_us, double gb_per_s) {
  return {.alpha = alpha_us * micro, .beta = 1 / (gb_per_s * giga)};
}

void check(const Link& link, std::string_view name) {
  const bool is_sane = std::isfinite(link.alpha) && std::isfinite(link.beta) && link.alpha >= 0 && link.beta > 0;
  if (!is_sane) {
    throw ValueError(fmt::format("{}: the latency must be 0 or more microseconds, the bandwidth positive", name));
  }
}

/// A member that a description of a cluster does not have is probably a typing error.
void expect_members(const json& object, std::string_view where, const std::vector<std::string_view>& names) {
  if (!object.is_object()) throw ValueError(fmt::format("{} is not an object", where));
  for (const auto& [name, value] : object.items()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const auto nearest = did_you_mean(name, names);
    throw ValueError(fmt::format("{} has no \"{}\"{}: it has {}", where, name,
                                 nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest),
                                 fmt::join(names, ", ")));
  }
}

double number(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw ValueError(fmt::format("\"{}\" is missing", name));
  if (!found->is_number()) throw ValueError(fmt::format("\"{}\" is not a number", name));
  return found->get<double>();
}

Link read_link(const json& object, std::string_view name) {
  expect_members(object, name, {"alpha_us", "gb_per_s"});
  const auto link = link_of(number(object, "alpha_us"), number(object, "gb_per_s"));
  check(link, name);
  return link;
}

json to_value(const Link& link) {
  return {{"alpha_us", link.alpha / micro}, {"gb_per_s", 1 / link.beta / giga}};
}

Cluster read_members(const json& document) {
  expect_members(document, "the description of a cluster",
                 {"ranks_per_host", "intra", "inter", "algorithm", "overlap"});
  Cluster cluster;
  if (!document.contains("intra")) throw ValueError("\"intra\" is missing");
  cluster.intra = read_link(document["intra"], "\"intra\"");
  if (document.contains("inter")) cluster.inter = read_link(document["inter"], "\"inter\"");
  if (document.contains("ranks_per_host")) {
    const auto& ranks = document["ranks_per_host"];
    if (!ranks.is_number_integer() || ranks < 0 || ranks > 1'000'000) {
      throw ValueError("\"ranks_per_host\" is not a number of ranks");
    }
    cluster.ranks_per_host = ranks.get<int>();
  }
  if (document.contains("algorithm")) {
    const auto& name = document["algorithm"];
    if (!name.is_string()) throw ValueError("\"algorithm\" is not a text");
    cluster.algorithm = parse_algorithm(name.get_ref<const std::string&>());
  }
  if (document.contains("overlap")) cluster.overlap = number(document, "overlap");
  check(cluster);
  return cluster;
}

}  // namespace

std::string_view to_string(Algorithm algorithm) {
  return algorithm_names.at(static_cast<std::size_t>(algorithm));
}

Algorithm parse_algorithm(std::string_view name) {
  const auto* const found = std::find(algorithm_names.begin(), algorithm_names.end(), name);
  if (found == algorithm_names.end()) {
    throw ValueError(fmt::format("\"{}\" is no algorithm: {}", name, fmt::join(algorithm_names, ", ")));
  }
  return static_cast<Algorithm>(found - algorithm_names.begin());
}

Link parse_link(std::string_view text, std::string_view flag) {
  const auto fields = split(text, ':');
  std::array<double, 2> numbers{};
  bool is_good = fields.size() == numbers.size();
  for (std::size_t i = 0; is_good && i < numbers.size(); ++i) {
    const auto* const end = fields[i].data() + fields[i].size();
    const auto [stop, error] = std::from_chars(fields[i].data(), end, numbers.at(i));
    is_good = error == std::errc{} && stop == end;
  }
  if (!is_good) {
    throw ValueError(
        fmt::format("{} {}: give microseconds and gigabytes per second, as in {} 10:25", flag, text, flag));
  }
  const auto link = link_of(numbers[0], numbers[1]);
  check(link, flag);
  return link;
}

void check(const Cluster& cluster) {
  if (cluster.ranks_per_host < 0) throw ValueError("a host has at least one rank");
  if (!(cluster.overlap >= 0 && cluster.overlap <= 1)) throw ValueError("the overlap is a number from 0 to 1");
  if (cluster.inter && cluster.ranks_per_host == 0) {
    throw ValueError("the link between hosts is given, but not how many ranks a host has (ranks_per_host)");
  }
}

Cluster read_cluster(std::string_view text) {
  try {
    return read_members(json::parse(text));
  } catch (const json::exception& e) {
    throw ValueError(e.what());
  }
}

std::string to_json(const Cluster& cluster) {
  json document{
      {"intra", to_value(cluster.intra)}, {"algorithm", to_string(cluster.algorithm)}, {"overlap", cluster.overlap}};
  if (cluster.ranks_per_host > 0) document["ranks_per_host"] = cluster.ranks_per_host;
  if (cluster.inter) document["inter"] = to_value(*cluster.inter);
  return document.dump(2) + "\n";
}

std::string to_string(const Link& link) {
  return fmt::format("{:.3g} us, {:.3g} GB/s", link.alpha / micro, 1 / link.beta / giga);
}

}  // namespace cohort::plan
