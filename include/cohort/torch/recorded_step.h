// SPDX-License-Identifier: BSD-3-Clause
//
// A captured step as a file: its graph (graph.h), and the timeline of replays that were measured (graph_timeline.h).
//
//   auto captured = cohort::capture([](torch::Tensor x) { return x * 2; });
//   for (int i = 0; i < 2; ++i) captured(x);
//   captured.measure(5);
//   for (int i = 0; i < 5; ++i) captured(x);
//   cohort::save_step("ddp.step", captured.recorded());
//
//   const auto saved = cohort::load_step("ddp.step");               // anywhere
//   std::cout << saved.graph;
//
// Without libtorch, `cohort plan ddp.step` says what the step communicates and predicts what it takes on a cluster, and
// `cohort trace ddp.step` shows where its time went. The file is text, and data alone: nothing in it is executed. It has
// the shapes of tensors and the constants of operators, but no tensor's values.
#pragma once

#include <cohort/export.h>
#include <cohort/torch/graph.h>
#include <cohort/torch/graph_timeline.h>

#include <string>
#include <string_view>

namespace cohort {

struct RecordedStep {
  Graph graph{};
  GraphTimeline timeline{};
  friend bool operator==(const RecordedStep&, const RecordedStep&) = default;
};

/// As text that read_step() reads again; it throws a ValueError that names the line if the text is no step.
COHORT_API std::string serialize(const RecordedStep& step);
COHORT_API RecordedStep read_step(std::string_view text);
/// Whether the text begins as one of serialize() does.
COHORT_API bool is_step(std::string_view text);

/// Replaces the file as a whole. Throws an Error that names the file if it cannot be written.
COHORT_API void save_step(const std::string& path, const RecordedStep& step);
/// Throws an Error if the file cannot be read, is a link or is no regular file, and a ValueError if it has no step.
COHORT_API RecordedStep load_step(const std::string& path);

}  // namespace cohort
