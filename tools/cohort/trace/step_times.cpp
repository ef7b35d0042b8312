// SPDX-License-Identifier: BSD-3-Clause
#include "trace/step_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "graph/names.h"
#include "trace/chrome_document.h"

namespace cohort::trace {

namespace {

using graph_names::bytes_text;
using graph_names::counted;
using nlohmann::json;

constexpr std::size_t longest_name = 44;

/// A file may have anything in its texts.
std::string shown(std::string_view text) {
  return graph_names::shortened(text, longest_name);
}

std::string name_of(const GraphNode& node) {
  return shown(node.name.empty() ? "host" : node.name);
}

std::string group_of(const Graph& graph, const GraphNode& node) {
  return shown(graph_names::name_of_group(graph, node.group));
}

double milliseconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

double share(std::int64_t part, std::int64_t all) {
  return all > 0 ? 100 * static_cast<double>(part) / static_cast<double>(all) : 0;
}

struct TimedNode {
  std::size_t number;
  const GraphNode* node;
  NodeTime time;
  std::int64_t lasted() const { return time.end - time.begin; }
};

std::vector<TimedNode> timed_nodes(const RecordedStep& step) {
  const auto nodes = all_nodes(step.graph);
  const auto& times = typical_replay(step.timeline).nodes;
  std::vector<TimedNode> result;
  for (std::size_t i = 0; i < nodes.size(); ++i) result.push_back({i, nodes[i], times[i]});
  return result;
}

std::string shares_text(const StepTimes& times) {
  std::string text;
  const auto add = [&](std::string_view what, std::int64_t time, std::string_view note) {
    text += fmt::format("  {:<22} {:>10.3f} ms  {:>5.1f}%{}{}\n", what, milliseconds(time), share(time, times.all),
                        note.empty() ? "" : "  ", note);
  };
  add("computing", times.computing, "");
  if (times.issuing > 0) add("issuing collectives", times.issuing, "");
  if (times.communicating > 0) add("blocking collectives", times.communicating, "exposed communication");
  if (times.waiting > 0) add("waiting", times.waiting, "exposed communication");
  if (times.host > 0) add("host", times.host, "");
  const auto other = times.all - times.computing - times.issuing - times.exposed() - times.host;
  if (other > 0) add("around the nodes", other, "");
  if (times.in_flight > 0) {
    text += fmt::format("Asynchronous collectives were in flight for {:.3f} ms; the step waited for {:.1f}% of that.\n",
                        milliseconds(times.in_flight), share(times.waiting, times.in_flight));
  }
  return text;
}

std::string operators_text(const std::vector<TimedNode>& nodes, std::int64_t all, std::size_t longest_list) {
  struct Sum {
    std::size_t count = 0;
    std::int64_t time = 0;
  };
  std::map<std::string, Sum> by_name;
  for (const auto& each : nodes) {
    auto& sum = by_name[name_of(*each.node)];
    ++sum.count;
    sum.time += each.lasted();
  }
  std::vector<std::pair<std::string, Sum>> sums(by_name.begin(), by_name.end());
  std::stable_sort(sums.begin(), sums.end(),
                   [](const auto& a, const auto& b) { return a.second.time > b.second.time; });
  if (sums.size() > longest_list) sums.resize(longest_list);
  auto text = fmt::format("\n  {:<44} {:>6}  {:>10}  {:>6}\n", "operators, together", "count", "ms", "share");
  for (const auto& [name, sum] : sums) {
    text += fmt::format("  {:<44} {:>6}  {:>10.3f}  {:>5.1f}%\n", name, sum.count, milliseconds(sum.time),
                        share(sum.time, all));
  }
  return text;
}

std::string slowest_text(const Graph& graph, std::vector<TimedNode> nodes, std::int64_t all, std::size_t longest_list) {
  std::erase_if(nodes, [](const TimedNode& each) { return each.node->kind == GraphNode::Kind::collective; });
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const TimedNode& a, const TimedNode& b) { return a.lasted() > b.lasted(); });
  if (nodes.size() > longest_list) nodes.resize(longest_list);
  auto text = fmt::format("\n  {:>6}  {:<44}  {:>10}  {:>6}\n", "node", "slowest nodes", "ms", "share");
  for (const auto& each : nodes) {
    auto name = name_of(*each.node);
    if (!each.node->results.empty()) name += " -> " + to_string(graph.values[each.node->results.front()]);
    text += fmt::format("  {:>6}  {:<44}  {:>10.3f}  {:>5.1f}%\n", each.number, shown(name),
                        milliseconds(each.lasted()), share(each.lasted(), all));
  }
  return text;
}

/// Until it is complete where that is known, else on the thread.
std::int64_t duration_of(const TimedNode& collective) {
  return (collective.time.completed >= 0 ? collective.time.completed : collective.time.end) - collective.time.begin;
}

std::string collectives_text(const Graph& graph, std::vector<TimedNode> nodes, std::size_t longest_list) {
  std::erase_if(nodes, [](const TimedNode& each) { return each.node->kind != GraphNode::Kind::collective; });
  if (nodes.empty()) return {};
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const TimedNode& a, const TimedNode& b) { return duration_of(a) > duration_of(b); });
  const auto all = nodes.size();
  if (nodes.size() > longest_list) nodes.resize(longest_list);
  auto text = fmt::format("\n  {:>6}  {:<28}  {:<16}  {:>5}  {:>10}  {:>10}  {:>10}\n", "node",
                          all > nodes.size() ? fmt::format("slowest of {} collectives", all) : "collectives", "group",
                          "ranks", "bytes", "begins ms", "lasts ms");
  for (const auto& each : nodes) {
    text += fmt::format("  {:>6}  {:<28}  {:<16}  {:>5}  {:>10}  {:>10.3f}  {:>10.3f}{}\n", each.number,
                        name_of(*each.node), group_of(graph, *each.node), each.node->group_size,
                        bytes_text(each.node->bytes), milliseconds(each.time.begin), milliseconds(duration_of(each)),
                        !each.node->is_async       ? ""
                        : each.time.completed >= 0 ? "  async"
                                                   : "  async, until issued");
  }
  return text;
}

ChromeEvent event_of(const Graph& graph, const GraphNode& node, std::size_t number, std::int64_t begin,
                     std::int64_t end) {
  constexpr std::array<std::string_view, 5> categories{"op", "collective", "wait", "host", "distributed"};
  json arguments{{"node", number}};
  if (!node.results.empty()) arguments["makes"] = to_string(graph.values[node.results.front()]);
  if (node.kind == GraphNode::Kind::collective) {
    arguments["group"] = group_of(graph, node);
    arguments["ranks"] = node.group_size;
    arguments["bytes"] = node.bytes;
  }
  return {.name = name_of(node),
          .category = std::string(categories.at(static_cast<std::size_t>(node.kind))),
          .begin = begin,
          .end = end,
          .arguments = std::move(arguments)};
}

}  // namespace

StepTimes times_of(const RecordedStep& step) {
  StepTimes times{.all = typical_replay(step.timeline).end};
  for (const auto& each : timed_nodes(step)) {
    switch (each.node->kind) {
      case GraphNode::Kind::op:
      case GraphNode::Kind::distributed:  // its body follows
        times.computing += each.lasted();
        break;
      case GraphNode::Kind::collective:
        (each.node->is_async ? times.issuing : times.communicating) += each.lasted();
        if (each.node->is_async && each.time.completed >= 0) times.in_flight += each.time.completed - each.time.begin;
        break;
      case GraphNode::Kind::wait:
        times.waiting += each.lasted();
        break;
      case GraphNode::Kind::host:
        times.host += each.lasted();
        break;
    }
  }
  return times;
}

std::string step_report(const RecordedStep& step, std::size_t longest_list) {
  const auto times = times_of(step);
  const auto nodes = timed_nodes(step);
  auto text = fmt::format("{}, {} measured; the typical one took {:.3f} ms\n", counted(nodes.size(), "node"),
                          counted(step.timeline.replays.size(), "replay"), milliseconds(times.all));
  return text + shares_text(times) + operators_text(nodes, times.all, longest_list) +
         slowest_text(step.graph, nodes, times.all, longest_list) + collectives_text(step.graph, nodes, longest_list);
}

std::string step_json(const RecordedStep& step) {
  const auto times = times_of(step);
  auto nodes = json::array();
  for (const auto& each : timed_nodes(step)) {
    json value{
        {"node", each.number}, {"name", each.node->name}, {"begin_ns", each.time.begin}, {"end_ns", each.time.end}};
    if (each.time.completed >= 0) value["completed_ns"] = each.time.completed;
    nodes.push_back(std::move(value));
  }
  const json document{{"replays", step.timeline.replays.size()},
                      {"all_ns", times.all},
                      {"computing_ns", times.computing},
                      {"issuing_ns", times.issuing},
                      {"communicating_ns", times.communicating},
                      {"waiting_ns", times.waiting},
                      {"host_ns", times.host},
                      {"exposed_ns", times.exposed()},
                      {"nodes", std::move(nodes)}};
  return document.dump(2, ' ', false, json::error_handler_t::replace);
}

std::string step_chrome_trace(const RecordedStep& step) {
  const auto nodes = all_nodes(step.graph);
  std::vector<ChromeProcess> processes;
  std::vector<ChromeTrack> tracks;
  for (std::size_t r = 0; r < step.timeline.replays.size(); ++r) {
    const int process = static_cast<int>(r);
    const auto& times = step.timeline.replays[r].nodes;
    processes.push_back({process, fmt::format("replay {}", r + 1)});
    ChromeTrack thread{.process = process, .name = "thread"};
    std::map<std::string, ChromeTrack> groups;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      thread.events.push_back(event_of(step.graph, *nodes[i], i, times[i].begin, times[i].end));
      if (times[i].completed < 0) continue;
      auto& group = groups[nodes[i]->group];
      group.events.push_back(event_of(step.graph, *nodes[i], i, times[i].begin, times[i].completed));
      group.name = group_of(step.graph, *nodes[i]);
    }
    tracks.push_back(std::move(thread));
    for (auto& [id, group] : groups) {
      group.process = process;
      tracks.push_back(std::move(group));
    }
  }
  return chrome_document(processes, std::move(tracks), 0);
}

}  // namespace cohort::trace
