// SPDX-License-Identifier: BSD-3-Clause
#include "plan/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/line_chart.h"
#include "graph/names.h"
#include "measure/sizes.h"

namespace cohort::plan {

namespace {

using graph_names::bytes_text;
using nlohmann::json;

constexpr std::size_t longest_name = 40;

/// A file may have anything in its texts.
std::string shown(std::string_view text) {
  return graph_names::shortened(text, longest_name);
}

/// The name of a group and, where several share it, its id.
std::string name_of(const StepModel& model, std::size_t group) {
  const auto& it = model.groups[group];
  const auto shared = std::count_if(model.groups.begin(), model.groups.end(),
                                    [&](const StepGroup& each) { return each.name() == it.name(); });
  return shown(shared > 1 && !it.label.empty() ? fmt::format("{} ({})", it.label, it.id) : it.name());
}

struct Traffic {
  std::size_t group = 0;
  std::string operation{};
  std::size_t count = 0;
  std::size_t async = 0;
  std::size_t bytes = 0;
};

/// The operations of a group together, in the order in which they first appear.
std::vector<Traffic> traffic_of(const StepModel& model) {
  std::vector<Traffic> all;
  for (const auto& event : model.events) {
    if (event.kind != StepEvent::Kind::collective) continue;
    auto found = std::find_if(all.begin(), all.end(), [&](const Traffic& each) {
      return each.group == event.group && each.operation == event.operation;
    });
    if (found == all.end()) found = all.insert(all.end(), {.group = event.group, .operation = event.operation});
    ++found->count;
    found->async += static_cast<std::size_t>(event.is_async);
    found->bytes += event.bytes;
  }
  std::stable_sort(all.begin(), all.end(), [](const Traffic& a, const Traffic& b) { return a.group < b.group; });
  return all;
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.3f}", seconds * 1e3);
}

json to_value(const Prediction& prediction) {
  return {{"step_s", prediction.step},
          {"compute_s", prediction.compute},
          {"communication_s", prediction.communication},
          {"exposed_s", prediction.exposed},
          {"groups_s", prediction.groups}};
}

json to_value(const PlannedStep& it) {
  auto groups = json::array();
  for (const auto& each : it.model.groups) {
    groups.push_back({{"id", each.id}, {"label", each.label}, {"ranks", each.ranks}, {"stride", each.stride}});
  }
  auto traffic = json::array();
  for (const auto& each : traffic_of(it.model)) {
    traffic.push_back({{"group", each.group},
                       {"operation", each.operation},
                       {"count", each.count},
                       {"async", each.async},
                       {"bytes", each.bytes}});
  }
  auto worlds = json::array();
  for (const auto& each : it.forecasts) {
    auto buckets = json::array();
    for (const auto& bucket : each.buckets) {
      auto value = to_value(bucket.prediction);
      value["bytes"] = bucket.bytes;
      buckets.push_back(std::move(value));
    }
    worlds.push_back(
        {{"world", each.world}, {"as_recorded", to_value(each.as_recorded)}, {"buckets", std::move(buckets)}});
  }
  return {{"file", it.file},
          {"nodes", it.step.graph.nodes.size()},
          {"world", it.model.world()},
          {"has_times", it.model.has_times},
          {"groups", std::move(groups)},
          {"traffic", std::move(traffic)},
          {"worlds", std::move(worlds)}};
}

}  // namespace

std::string communication_table(const RecordedStep& step, const StepModel& model) {
  const auto all = traffic_of(model);
  auto text = fmt::format("{}, recorded on {}, {}\n", graph_names::counted(step.graph.nodes.size(), "node"),
                          graph_names::counted(static_cast<std::size_t>(model.world()), "rank"),
                          model.has_times ? graph_names::counted(step.timeline.replays.size(), "replay") + " measured"
                                          : "no replay measured");
  if (all.empty()) return text + "The step communicates nothing.\n";
  std::size_t width = 5;
  for (const auto& each : all) width = std::max(width, name_of(model, each.group).size());
  Traffic sum;
  text += fmt::format("\n  {:<{}}  {:>6}  {:<22}  {:>6}  {:>6}  {:>12}\n", "group", width, "ranks", "operation",
                      "count", "async", "bytes");
  const auto add = [&](const std::string& group, const std::string& ranks, const Traffic& it) {
    text += fmt::format("  {:<{}}  {:>6}  {:<22}  {:>6}  {:>6}  {:>12}\n", group, width, ranks, shown(it.operation),
                        it.count, it.async, bytes_text(it.bytes));
  };
  for (const auto& each : all) {
    add(name_of(model, each.group), fmt::to_string(model.groups[each.group].ranks), each);
    sum.count += each.count;
    sum.async += each.async;
    sum.bytes += each.bytes;
  }
  sum.operation = "all";
  if (all.size() > 1) add("", "", sum);
  return text;
}

std::string describe(const Cluster& cluster) {
  auto text = cluster.ranks_per_host > 0 ? fmt::format("{} ranks on a host; inside it ", cluster.ranks_per_host)
                                         : std::string("one host; inside it ");
  text += to_string(cluster.intra);
  if (cluster.inter) text += "; between hosts " + to_string(*cluster.inter);
  return text + fmt::format("; {} algorithms; overlap {:g}", to_string(cluster.algorithm), cluster.overlap);
}

std::string forecast_table(const StepModel& model, const std::vector<WorldForecast>& forecasts) {
  std::string text;
  if (!model.has_times) {
    text += "No replay was measured, so only communication is predicted; measure() before saving the step.\n";
    text += fmt::format("  {:>8}  {:>17}\n", "ranks", "communication ms");
    for (const auto& each : forecasts) {
      text += fmt::format("  {:>8}  {:>17}\n", each.world, milliseconds(each.as_recorded.communication));
    }
    return text;
  }
  text += fmt::format("  {:>8}  {:>10}  {:>10}  {:>16}  {:>10}  {:>6}  {:>12}  {:>10}\n", "ranks", "step ms", "compute",
                      "communication", "exposed", "hidden", "best bucket", "step ms");
  for (const auto& each : forecasts) {
    const auto& it = each.as_recorded;
    const auto* const best = each.best();
    text += fmt::format("  {:>8}  {:>10}  {:>10}  {:>16}  {:>10}  {:>5.0f}%  {:>12}  {:>10}\n", each.world,
                        milliseconds(it.step), milliseconds(it.compute), milliseconds(it.communication),
                        milliseconds(it.exposed), 100 * it.hidden(), best == nullptr ? "-" : bytes_text(best->bytes),
                        best == nullptr ? "-" : milliseconds(best->prediction.step));
  }
  return text;
}

std::string forecast_picture(const std::string& name, const std::vector<WorldForecast>& forecasts) {
  tool::Chart worlds{.title = name + ": ms over ranks", .up = tool::ChartScale::linear};
  tool::Chart buckets{.title = name + ": step ms over bucket size", .up = tool::ChartScale::linear};
  tool::ChartLine step{.label = "step, buckets as recorded"};
  tool::ChartLine best{.label = "step, best buckets"};
  tool::ChartLine communication{.label = "communication"};
  for (const auto& each : forecasts) {
    const auto x = static_cast<double>(each.world);
    worlds.ticks.push_back({x, fmt::to_string(each.world)});
    step.points.push_back({x, each.as_recorded.step * 1e3});
    communication.points.push_back({x, each.as_recorded.communication * 1e3});
    if (const auto* const found = each.best()) best.points.push_back({x, found->prediction.step * 1e3});
    tool::ChartLine line{.label = fmt::format("{} ranks", each.world)};
    for (const auto& bucket : each.buckets) {
      line.points.push_back({static_cast<double>(bucket.bytes), bucket.prediction.step * 1e3});
    }
    buckets.lines.push_back(std::move(line));
  }
  if (!forecasts.empty()) {
    for (const auto& each : forecasts.front().buckets) {
      buckets.ticks.push_back({static_cast<double>(each.bytes), measure::format_size(each.bytes)});
    }
  }
  worlds.lines = {std::move(step), std::move(best), std::move(communication)};
  std::vector<tool::ChartRow> rows{{std::move(worlds)}};
  if (!buckets.ticks.empty()) rows.push_back({std::move(buckets)});
  return tool::draw_charts(rows);
}

std::string to_json(const std::vector<PlannedStep>& steps) {
  auto values = json::array();
  for (const auto& each : steps) values.push_back(to_value(each));
  return values.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace cohort::plan
