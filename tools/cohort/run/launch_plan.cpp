// SPDX-License-Identifier: BSD-3-Clause
#include "run/launch_plan.h"

#include <cohort/error.h>
#include <cohort/tcp_store.h>

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "common/cpu_share.h"
#include "core/parse.h"
#include "run/prefix_format.h"

namespace cohort::tool {

namespace {

int positive(std::string_view text, std::string_view what) {
  const auto number = parse_integer<int>(text);
  if (!number || *number < 1) throw ValueError(fmt::format("{} is \"{}\": a number of 1 or more", what, text));
  return *number;
}

/// In a pod, RANK and WORLD_SIZE count pods, unless LOCAL_RANK is set as well: then they count ranks.
bool counts_pods(const Env& env) {
  return !env.text("KUBERNETES_PORT").empty() && env.text("LOCAL_RANK").empty();
}

int nodes_of(const RunFlags& flags, const Env& env) {
  if (flags.standalone) return 1;
  if (flags.nnodes.empty()) {
    return counts_pods(env) && !env.text("WORLD_SIZE").empty() ? positive(env.text("WORLD_SIZE"), "WORLD_SIZE") : 1;
  }
  const auto range = split(flags.nnodes, ':');
  const int least = positive(range.front(), "--nnodes");
  const int most = range.size() == 1 ? least : positive(range.back(), "--nnodes");
  if (range.size() > 2 || least != most) {
    throw ValueError(
        fmt::format("--nnodes {}: the number of hosts cannot change while a job runs; give one number", flags.nnodes));
  }
  return least;
}

int node_rank_of(const RunFlags& flags, const Env& env, int nodes) {
  if (nodes == 1) return 0;
  auto rank = flags.node_rank;
  if (!rank && counts_pods(env)) rank = env.integer("RANK");
  if (!rank) {
    throw ValueError(fmt::format(
        "--nnodes {} also needs --node-rank: 0 on the host of the endpoint, 1, 2, ... on the others", nodes));
  }
  if (*rank < 0 || *rank >= nodes) {
    throw ValueError(fmt::format("node rank {} is not one of 0 to {} (--nnodes {})", *rank, nodes - 1, nodes));
  }
  return *rank;
}

int count_gpus(const Env& env) {
  if (const auto visible = env.text("CUDA_VISIBLE_DEVICES"); !visible.empty()) {
    return visible == "-1" ? 0 : static_cast<int>(split(visible, ',').size());
  }
  constexpr std::string_view prefix = "nvidia";
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(prefix) && parse_integer<int>(std::string_view(name).substr(prefix.size()))) ++count;
  }
  return count;
}

int local_size_of(const RunFlags& flags, const Env& env) {
  std::string_view text = flags.nproc_per_node;
  if (text.empty() && counts_pods(env)) text = env.text("NPROC_PER_NODE");
  if (text.empty()) return 1;
  const int gpus = text == "gpu" || text == "auto" ? count_gpus(env) : 0;
  if (gpus > 0) return gpus;
  if (text == "gpu") throw ValueError("--nproc-per-node gpu: this host has no GPU, or CUDA_VISIBLE_DEVICES hides them");
  if (text == "cpu" || text == "auto") return usable_cpus().count();
  const auto number = parse_integer<int>(text);
  if (!number || *number < 1) {
    throw ValueError(fmt::format("--nproc-per-node is \"{}\": a number of 1 or more, auto, cpu or gpu", text));
  }
  return *number;
}

std::uint16_t port_of(std::string_view text, std::string_view what) {
  const auto port = parse_integer<std::uint16_t>(text);
  if (!port || *port == 0) throw ValueError(fmt::format("{} is \"{}\": a port from 1 to 65535", what, text));
  return *port;
}

/// HOST, HOST:PORT, [ADDRESS]:PORT
Endpoint parse_rdzv_endpoint(std::string_view text) {
  const auto colon = text.rfind(':');
  const bool is_bare_address = text.find(':') != colon && text.front() != '[';
  const bool has_port = colon != std::string_view::npos && !is_bare_address && text.back() != ']';
  const auto port = has_port ? port_of(text.substr(colon + 1), "the port in --rdzv-endpoint") : default_store_port;
  auto host = has_port ? text.substr(0, colon) : text;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty()) throw ValueError(fmt::format("--rdzv-endpoint \"{}\" has no host", text));
  return Endpoint::tcp(std::string(host), port);
}

Endpoint endpoint_of(const RunFlags& flags, const Env& env) {
  if (!flags.rdzv_endpoint.empty()) return parse_rdzv_endpoint(flags.rdzv_endpoint);
  const bool pod = counts_pods(env);
  auto host = flags.master_addr;
  if (host.empty() && pod) host = env.text("MASTER_ADDR");
  if (host.empty()) {
    throw ValueError(
        "several hosts need --rdzv-endpoint HOST[:PORT] (or --master-addr): the address of host 0, the same on all "
        "hosts");
  }
  auto port = default_store_port;
  if (flags.master_port) {
    port = port_of(std::to_string(*flags.master_port), "--master-port");
  } else if (pod && !env.text("MASTER_PORT").empty()) {
    port = port_of(env.text("MASTER_PORT"), "MASTER_PORT");
  }
  return Endpoint::tcp(host, port);
}

std::chrono::milliseconds join_timeout_of(const RunFlags& flags) {
  const LaunchPlan defaults;
  constexpr std::string_view key = "join_timeout=";
  for (const auto pair : split(flags.rdzv_conf, ',')) {
    if (!pair.starts_with(key)) continue;
    return std::chrono::seconds(positive(pair.substr(key.size()), "join_timeout in --rdzv-conf"));
  }
  return defaults.join_timeout;
}

/// The name is also that of a folder in --log-dir.
std::string checked_job_name(const std::string& name) {
  if (name.find('/') != std::string::npos || name == "." || name == "..") {
    throw ValueError(fmt::format("--rdzv-id \"{}\": the name of a job has no / and is neither . nor ..", name));
  }
  return name;
}

std::set<int> parse_filter(const std::string& text, int local_size) {
  std::set<int> ranks;
  for (const auto piece : split(text, ',')) {
    const auto rank = parse_integer<int>(piece);
    if (!rank || *rank < 0 || *rank >= local_size) {
      throw ValueError(
          fmt::format("--local-ranks-filter {}: \"{}\" is not a local rank (0 to {})", text, piece, local_size - 1));
    }
    ranks.insert(*rank);
  }
  return ranks;
}

void plan_output(LaunchPlan& plan, const RunFlags& flags) {
  plan.log_dir = flags.log_dir;
  plan.uses_pty = !flags.no_pty;
  plan.prefix_format = flags.no_prefix ? std::string() : flags.prefix_format;
  if (plan.prefix_format)
    format_prefix(*plan.prefix_format, {});  // so that a mistake is reported before anything starts
  auto redirected = parse_streams(flags.redirects, plan.local_size, "--redirects");
  const auto teed = parse_streams(flags.tee, plan.local_size, "--tee");
  const bool says_nothing = flags.redirects.empty() && flags.tee.empty();
  std::set<int> shown;
  if (!flags.local_ranks_filter.empty()) shown = parse_filter(flags.local_ranks_filter, plan.local_size);
  for (int rank = 0; rank < plan.local_size; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    if (redirected[i] != no_stream && plan.log_dir.empty()) {
      throw ValueError("--redirects needs --log-dir, the folder for the output");
    }
    const bool is_shown = shown.empty() || shown.contains(rank);
    plan.on_console.push_back(is_shown ? both_streams & ~(redirected[i] & ~teed[i]) : no_stream);
    if (plan.log_dir.empty()) {
      plan.logged.push_back(no_stream);
    } else {
      plan.logged.push_back(says_nothing ? both_streams : redirected[i] | teed[i]);
    }
  }
}

}  // namespace

std::vector<unsigned> parse_streams(const std::string& text, int local_size, const char* flag) {
  std::vector<unsigned> streams(static_cast<std::size_t>(local_size), no_stream);
  if (text.empty()) return streams;
  const auto value = [&](std::string_view piece) {
    const auto number = parse_integer<unsigned>(piece);
    if (!number || *number > both_streams) {
      throw ValueError(fmt::format("{} {}: \"{}\" is not 0, 1, 2 or 3", flag, text, piece));
    }
    return *number;
  };
  if (text.find(':') == std::string::npos) {
    streams.assign(streams.size(), value(text));
    return streams;
  }
  for (const auto pair : split(text, ',')) {
    const auto parts = split(pair, ':');
    const auto rank = parse_integer<std::size_t>(parts.front());
    if (parts.size() != 2 || !rank || *rank >= streams.size()) {
      throw ValueError(fmt::format("{} {}: \"{}\" is not LOCAL_RANK:VALUE with a local rank from 0 to {}", flag, text,
                                   pair, local_size - 1));
    }
    streams[*rank] = value(parts.back());
  }
  return streams;
}

LaunchPlan make_plan(const RunFlags& flags, const Env& env) {
  LaunchPlan plan;
  plan.env = env;
  plan.program = flags.program;
  plan.nodes = nodes_of(flags, env);
  plan.node_rank = node_rank_of(flags, env, plan.nodes);
  plan.local_size = local_size_of(flags, env);
  plan.role = flags.role;
  plan.job_name = checked_job_name(flags.rdzv_id);
  plan.join_timeout = join_timeout_of(flags);
  plan.max_restarts = flags.max_restarts;
  plan.keep_going = flags.keep_going;
  plan.grace_period = std::chrono::milliseconds(std::lround(flags.grace_period * 1000));
  plan.may_bind = flags.bind == "auto";
  if (plan.is_one_host()) {
    if (!flags.master_addr.empty()) plan.master_addr = flags.master_addr;
    if (flags.master_port.value_or(0) != 0) plan.master_port = static_cast<std::uint16_t>(*flags.master_port);
  } else {
    plan.endpoint = endpoint_of(flags, env);
    plan.master_addr = plan.endpoint.host;
    plan.listen_on = plan.endpoint;
    if (!flags.local_addr.empty()) plan.listen_on.host = flags.local_addr;
  }
  plan_output(plan, flags);
  return plan;
}

}  // namespace cohort::tool
