// SPDX-License-Identifier: BSD-3-Clause
//
// Timelines and recorded steps: written, read, refused and kept in files, without libtorch.
#include <cohort/error.h>
#include <cohort/torch/recorded_step.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "graph/example_graphs.h"
#include "support/expect_error.h"
#include "support/temporary.h"

namespace cohort::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

GraphTimeline random_timeline(RandomGraphs& random, std::size_t nodes) {
  GraphTimeline timeline;
  timeline.replays.resize(random.below(4));
  for (auto& replay : timeline.replays) {
    std::int64_t now = 0;
    const auto later = [&] { return now += static_cast<std::int64_t>(random.below(1000)); };
    for (std::size_t i = 0; i < nodes; ++i) {
      NodeTime node{.begin = later(), .end = later()};
      if (random.below(2) == 0) node.completed = node.begin + static_cast<std::int64_t>(random.below(5000));
      replay.nodes.push_back(node);
    }
    replay.end = later();
  }
  return timeline;
}

TEST(Timeline, IsWrittenAndReadAgain) {
  const GraphTimeline timeline{{{.nodes = {{0, 1200, -1}, {1200, 1900, 4800}}, .end = 5300}}};
  const std::string text = "cohort timeline 1\nreplay 5300\nnode 0 1200\nnode 1200 1900 4800\nend\n";
  EXPECT_EQ(serialize(timeline), text);
  EXPECT_EQ(read_timeline(text, 2), timeline);
}

TEST(Timeline, RefusesWhatIsNone) {
  struct Bad {
    const char* text;
    const char* why;
  };
  for (const auto& [text, why] : {
           Bad{"", "line 1 of a timeline: the text ends too early"},
           Bad{"cohort timeline 2\nend\n", "does not begin as a timeline of this version"},
           Bad{"cohort timeline 1\nreplay 9\nnode 0 1\nend\n", "line 4 of a timeline: the replay has 1 nodes"},
           Bad{"cohort timeline 1\nreplay 9\nnode 0 1\nnode 1 2\nnode 2 3\nend\n", "more nodes than the graph"},
           Bad{"cohort timeline 1\nreplay 9\nnode 0 3\nnode 2 4\nend\n", "before the one before it has ended"},
           Bad{"cohort timeline 1\nreplay 9\nnode 3 2\nnode 3 4\nend\n", "ends before it begins"},
           Bad{"cohort timeline 1\nreplay 9\nnode 0 1\nnode 3 10\nend\n", "too late"},
           Bad{"cohort timeline 1\nreplay 9\nnode 1 2 0\nnode 3 4\nend\n", "complete before it begins"},
           Bad{"cohort timeline 1\nreplay 9\nnode 1\nnode 3 4\nend\n", "a begin and an end"},
           Bad{"cohort timeline 1\nreplay 9\nnode 1 2 3 4\nnode 3 4\nend\n", "more in the line"},
           Bad{"cohort timeline 1\nreplay -9\nend\n", "malformed or out of range"},
           Bad{"cohort timeline 1\nreplay 99999999999999999999\nend\n", "malformed or out of range"},
           Bad{"cohort timeline 1\nend\nmore", "text after the end"},
           Bad{"cohort timeline 1\nstop\n", "is expected"},
       }) {
    EXPECT_ERROR(ValueError, read_timeline(text, 2), why);
  }
}

TEST(Timeline, TypicalReplayIsTheMedian) {
  GraphTimeline timeline;
  EXPECT_THAT(typical_durations(timeline), IsEmpty());
  EXPECT_ERROR(ValueError, typical_replay(timeline), "no replay was measured");
  for (const std::int64_t scale : {5, 1, 100, 2}) {
    timeline.replays.push_back({.nodes = {{0, 10 * scale}, {10 * scale, 30 * scale}}, .end = 30 * scale});
  }
  EXPECT_EQ(typical_replay(timeline).end, 60);
  EXPECT_THAT(typical_durations(timeline), ElementsAre(20, 40));
}

TEST(RecordedSteps, AreReadAsTheyWereWritten) {
  RandomGraphs random(7);
  for (int i = 0; i < 300; ++i) {
    RecordedStep step{.graph = random.graph(), .timeline = {}};
    step.timeline = random_timeline(random, all_nodes(step.graph).size());
    const auto text = serialize(step);
    EXPECT_TRUE(is_step(text));
    EXPECT_EQ(read_step(text), step);
  }
}

TEST(RecordedSteps, AnyShorterTextIsRefused) {
  RecordedStep step{.graph = linear_step(), .timeline = {}};
  const auto text = serialize(step);
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_THROW(read_step(text.substr(0, length)), ValueError) << length;
  }
  EXPECT_ERROR(ValueError, read_step("cohort step 2\n"), "another version");
}

TEST(RecordedSteps, AreKeptInFiles) {
  const TemporaryFolder folder;
  const RecordedStep step{.graph = linear_step(), .timeline = {}};
  const auto path = folder / "a.step";
  save_step(path, step);
  EXPECT_EQ(load_step(path), step);

  std::filesystem::create_symlink(path, folder / "link");
  EXPECT_ERROR(Error, load_step(folder / "link"), "is a symbolic link");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(Error, load_step(folder / "pipe"), "is not a regular file");
  EXPECT_ERROR(Error, load_step(folder / "missing"), "No such file");
  EXPECT_ERROR(Error, save_step(folder / "no/folder", step), "No such file");
  std::ofstream(folder / "other") << "other\n";
  EXPECT_ERROR(ValueError, load_step(folder / "other"), "other is no recorded step: the text does not begin");
  // A sparse file that claims more than is read: refused before memory is taken.
  std::filesystem::resize_file(folder / "other", std::uintmax_t{1} << 40U);
  EXPECT_ERROR(Error, load_step(folder / "other"), "at most 1073741824 are read");
}

}  // namespace
}  // namespace cohort::test
