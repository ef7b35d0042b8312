// SPDX-License-Identifier: BSD-3-Clause
//
// Timelines as text: a line for each replay, with its end, followed by one for each node, with begin, end and, where it
// is known, the time at which an asynchronous collective was complete.
//
//   cohort timeline 1
//   replay 5300
//   node 0 1200
//   node 1200 1900 4800
//   end
#include <cohort/error.h>
#include <cohort/torch/graph_timeline.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/parse.h"

namespace cohort {

namespace {

constexpr std::string_view first_line_of_timeline = "cohort timeline 1";
/// A year: longer than any replay, and short enough that sums of a few times are numbers.
constexpr std::int64_t latest_time = std::int64_t{365} * 24 * 3600 * 1'000'000'000;

class TimelineReader {
 public:
  TimelineReader(std::string_view text, std::size_t nodes) : rest_(text), nodes_(nodes) {}

  GraphTimeline read() {
    if (next_line() != first_line_of_timeline) fail("the text does not begin as a timeline of this version does");
    GraphTimeline timeline;
    auto line = next_line();
    while (line.starts_with("replay ")) {
      timeline.replays.push_back({.nodes = {}, .end = times(line, 1).front()});
      auto& replay = timeline.replays.back();
      std::int64_t last = 0;
      for (line = next_line(); line.starts_with("node "); line = next_line()) {
        if (replay.nodes.size() == nodes_) fail("the replay has more nodes than the graph");
        replay.nodes.push_back(node(line, last, replay.end));
        last = replay.nodes.back().end;
      }
      if (replay.nodes.size() != nodes_) {
        fail(fmt::format("the replay has {} nodes, and the graph {}", replay.nodes.size(), nodes_));
      }
    }
    if (line != "end") fail("'replay', 'node' or 'end' is expected");
    if (!rest_.empty()) fail("there is text after the end");
    return timeline;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw ValueError(fmt::format("line {} of a timeline: {}", line_number_, what));
  }

  std::string_view next_line() {
    ++line_number_;
    const auto end = rest_.find('\n');
    if (end == std::string_view::npos) fail(rest_.empty() ? "the text ends too early" : "the line does not end");
    const auto line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return line;
  }

  /// What follows the line's first word.
  std::vector<std::int64_t> times(std::string_view line, std::size_t most) const {
    const auto fields = split(line, ' ');
    if (fields.size() > most + 1) fail("there is more in the line than belongs there");
    std::vector<std::int64_t> numbers;
    for (std::size_t i = 1; i < fields.size(); ++i) {
      const auto number = parse_integer<std::int64_t>(fields[i]);
      if (!number || *number < 0 || *number > latest_time) fail("a time is malformed or out of range");
      numbers.push_back(*number);
    }
    return numbers;
  }

  NodeTime node(std::string_view line, std::int64_t last, std::int64_t end_of_replay) const {
    const auto numbers = times(line, 3);
    if (numbers.size() < 2) fail("a node has a begin and an end");
    if (numbers[0] < last) fail("a node begins before the one before it has ended");
    if (numbers[1] < numbers[0] || numbers[1] > end_of_replay) fail("a node ends before it begins, or too late");
    if (numbers.size() == 3 && numbers[2] < numbers[0]) fail("a collective is complete before it begins");
    return {.begin = numbers[0], .end = numbers[1], .completed = numbers.size() == 3 ? numbers[2] : -1};
  }

  std::string_view rest_;
  std::size_t nodes_;
  std::size_t line_number_ = 0;
};

/// Of an even number the lower one, so that it is one of them.
template <class Iterator>
void order_to_median(Iterator begin, Iterator end, Iterator& median) {
  median = begin + (end - begin - 1) / 2;
  std::nth_element(begin, median, end);
}

}  // namespace

const ReplayTimes& typical_replay(const GraphTimeline& timeline) {
  if (timeline.replays.empty()) throw ValueError("the timeline is empty: no replay was measured");
  std::vector<std::pair<std::int64_t, std::size_t>> ends;
  for (std::size_t i = 0; i < timeline.replays.size(); ++i) ends.emplace_back(timeline.replays[i].end, i);
  auto median = ends.begin();
  order_to_median(ends.begin(), ends.end(), median);
  return timeline.replays[median->second];
}

std::vector<std::int64_t> typical_durations(const GraphTimeline& timeline) {
  std::vector<std::int64_t> durations;
  if (timeline.replays.empty()) return durations;
  std::vector<std::int64_t> of_node(timeline.replays.size());
  for (std::size_t i = 0; i < timeline.replays.front().nodes.size(); ++i) {
    std::transform(timeline.replays.begin(), timeline.replays.end(), of_node.begin(),
                   [i](const ReplayTimes& each) { return each.nodes[i].end - each.nodes[i].begin; });
    auto median = of_node.begin();
    order_to_median(of_node.begin(), of_node.end(), median);
    durations.push_back(*median);
  }
  return durations;
}

std::string serialize(const GraphTimeline& timeline) {
  std::string text = fmt::format("{}\n", first_line_of_timeline);
  auto out = std::back_inserter(text);
  for (const auto& replay : timeline.replays) {
    fmt::format_to(out, "replay {}\n", replay.end);
    for (const auto& each : replay.nodes) {
      fmt::format_to(out, "node {} {}", each.begin, each.end);
      if (each.completed >= 0) fmt::format_to(out, " {}", each.completed);
      text += '\n';
    }
  }
  return text + "end\n";
}

GraphTimeline read_timeline(std::string_view text, std::size_t nodes) {
  return TimelineReader(text, nodes).read();
}

}  // namespace cohort
