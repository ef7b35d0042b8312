// SPDX-License-Identifier: BSD-3-Clause
//
// A first line, then the text of the graph, then that of the timeline. The line "end" ends the graph: texts in it are
// in quotes and have no line breaks.
#include <cohort/error.h>
#include <cohort/torch/recorded_step.h>

#include <fmt/format.h>

#include "core/whole_file.h"

namespace cohort {

namespace {

constexpr std::string_view first_line_of_step = "cohort step 1\n";
constexpr std::size_t longest_step = std::size_t{1} << 30U;

}  // namespace

std::string serialize(const RecordedStep& step) {
  return std::string(first_line_of_step) + serialize(step.graph) + serialize(step.timeline);
}

bool is_step(std::string_view text) {
  return text.starts_with(first_line_of_step.substr(0, first_line_of_step.find('1')));
}

RecordedStep read_step(std::string_view text) {
  if (!text.starts_with(first_line_of_step)) {
    throw ValueError(is_step(text) ? "the step was written by another version"
                                   : "the text does not begin as a recorded step does");
  }
  text.remove_prefix(first_line_of_step.size());
  constexpr std::string_view end_of_graph = "\nend\n";
  const auto end = text.find(end_of_graph);
  if (end == std::string_view::npos) throw ValueError("the text of a recorded step ends too early");
  const auto timeline = end + end_of_graph.size();
  RecordedStep step{.graph = read_graph(text.substr(0, timeline)), .timeline = {}};
  step.timeline = read_timeline(text.substr(timeline), all_nodes(step.graph).size());
  return step;
}

void save_step(const std::string& path, const RecordedStep& step) {
  write_whole_file(path, serialize(step));
}

RecordedStep load_step(const std::string& path) {
  const auto text = read_whole_file(path, longest_step);
  try {
    return read_step(text);
  } catch (const ValueError& error) {
    throw ValueError(fmt::format("{} is no recorded step: {}", path, error.message()));
  }
}

}  // namespace cohort
