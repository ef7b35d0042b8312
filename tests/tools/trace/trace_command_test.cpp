// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "support/temporary.h"
#include "tools/launched.h"
#include "tools/trace/made_dumps.h"

namespace {

using namespace cohort::test;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Three ranks of which the last never reached #17; one dump is CBOR.
class TraceCommand : public testing::Test {
 protected:
  TraceCommand() {
    std::filesystem::create_directory(folder_ / "dumps");
    for (int rank = 0; rank < 3; ++rank) {
      MadeRank made(rank);
      auto& group = made.join("7f", {0, 1, 2}, "data");
      run(group, {.op = "broadcast", .sequence = 16});
      if (rank != 2) begin(group, {.op = "all_reduce", .sequence = 17});
      files_.push_back(folder_ / ("dumps/trace_" + std::to_string(rank)));
      write(files_.back(), rank == 1 ? made.cbor() : made.json({}, rank == 0 ? "timed out" : ""));
    }
  }

  Strings with_files(Strings more) const {
    Strings arguments{"trace"};
    arguments.insert(arguments.end(), files_.begin(), files_.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  static constexpr auto summary_ =
      "rank 2 never started all_reduce #17 of group data (it last finished #16 broadcast); ranks 0, 1 wait in it";

  TemporaryFolder folder_;
  Strings files_;
};

TEST_F(TraceCommand, SaysWhatWentWrong) {
  const auto outcome = run_cohort(with_files({}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, StartsWith(std::string(summary_) + "\n"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 0 dumped because: timed out\n"));
  EXPECT_THAT(outcome.out, HasSubstr("group data (made up)\n"));
  EXPECT_THAT(outcome.out, HasSubstr("     1  #16 broadcast                 #17 all_reduce [4] f32\n"));
  EXPECT_THAT(outcome.out, HasSubstr("     2  #16 broadcast                 -\n"));
}

TEST_F(TraceCommand, TakesAFolder) {
  write(folder_ / "dumps/notes.txt", "not a dump");
  const auto outcome = run_cohort({"trace", folder_ / "dumps"});
  EXPECT_THAT(outcome.out, StartsWith(summary_));
  EXPECT_THAT(outcome.err, HasSubstr("notes.txt is not a flight recorder's dump"));
  EXPECT_THAT(outcome.err, HasSubstr("left out"));
}

TEST_F(TraceCommand, NamesOfFilesGiveATerminalNoOrders) {
  const std::string name = "\x1b[2Jnot\ra dump";
  write(folder_ / ("dumps/" + name), "not a dump");
  const LaunchOptions terminal{.in_terminal = true};
  const auto harmless = AllOf(HasSubstr("^[[2Jnot^Ma dump is not a flight"), Not(HasSubstr("\x1b[2J")));
  EXPECT_THAT(run_cohort({"trace", folder_ / "dumps"}, terminal).out, harmless);
  EXPECT_THAT(run_cohort({"trace", folder_ / ("dumps/" + name)}, terminal).out, harmless);
  EXPECT_THAT(run_cohort({"trace", folder_ / ("dumps/" + name)}).err, HasSubstr(name)) << "a file may contain anything";
}

TEST_F(TraceCommand, PrintsJson) {
  const auto outcome = run_cohort(with_files({"--json"}));
  EXPECT_EQ(outcome.code, 1);
  const auto report = json::parse(outcome.out);
  EXPECT_EQ(report.at("summary"), summary_);
  EXPECT_EQ(report.at("is_fine"), false);
  EXPECT_EQ(report.at("findings")[0].at("kind"), "not_reached");
  EXPECT_EQ(report.at("findings")[0].at("ranks"), json::array({2}));
  EXPECT_EQ(report.at("groups")[0].at("members").size(), 3U);
}

TEST_F(TraceCommand, ListsOperations) {
  const auto outcome = run_cohort(with_files({"--list"}));
  EXPECT_THAT(outcome.out, HasSubstr("broadcast [4] f32"));
  EXPECT_THAT(outcome.out, HasSubstr("completed"));
  EXPECT_THAT(run_cohort(with_files({})).out, Not(HasSubstr("took ms")));
}

TEST_F(TraceCommand, WritesAChromeTrace) {
  const auto path = folder_ / "timeline.json";
  run_cohort(with_files({"--chrome", path}));
  std::ifstream file(path);
  const auto trace = json::parse(file);
  EXPECT_GE(trace.at("traceEvents").size(), 5U);
  const auto outcome = run_cohort(with_files({"--chrome", "/nowhere/timeline.json"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/nowhere/timeline.json: No such file"));
}

TEST_F(TraceCommand, ChoosesAGroup) {
  EXPECT_THAT(run_cohort(with_files({"--group", "data"})).out, StartsWith(summary_));
  EXPECT_THAT(run_cohort(with_files({"--group", "7f"})).out, StartsWith(summary_));
  const auto outcome = run_cohort(with_files({"--group", "model"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no group \"model\" in the dumps; there is: data"));
}

TEST_F(TraceCommand, AllIsWell) {
  MadeRank made(0);
  run(made.join("g", {0}), {.sequence = 1});
  write(folder_ / "fine", made.json());
  const auto outcome = run_cohort({"trace", folder_ / "fine"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("all ranks finished everything they started\n"));
}

TEST_F(TraceCommand, RefusesWhatIsNoDump) {
  write(folder_ / "junk", "junk");
  EXPECT_THAT(run_cohort({"trace", folder_ / "junk"}).err, HasSubstr("junk is not a flight recorder's dump"));
  EXPECT_THAT(run_cohort({"trace", folder_ / "gone"}).err, HasSubstr("gone: open: No such file"));
  std::filesystem::create_directory(folder_ / "empty");
  EXPECT_THAT(run_cohort({"trace", folder_ / "empty"}).err, HasSubstr("no dumps in"));
  EXPECT_NE(run_cohort({"trace"}).code, 0);
}

TEST_F(TraceCommand, ReadsRegularFilesOfASaneSizeAlone) {
  ASSERT_EQ(::mkfifo((folder_ / "dumps/pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink(files_.front(), folder_ / "dumps/link");
  write(folder_ / "dumps/huge", "");
  std::filesystem::resize_file(folder_ / "dumps/huge", std::uintmax_t{1} << 40U);
  for (const auto& [path, why] : {std::pair<std::string, std::string>{folder_ / "dumps/pipe", "is not a regular file"},
                                  {"/dev/zero", "is not a regular file"},
                                  {folder_ / "dumps/link", "is a symbolic link"},
                                  {folder_ / "dumps/huge", "at most 1073741824 are read"}}) {
    for (const auto& arguments : {Strings{"trace", path}, with_files({path})}) {
      const auto outcome = run_cohort(arguments);
      EXPECT_EQ(outcome.code, 1);
      EXPECT_THAT(outcome.err, AllOf(HasSubstr(path + ": "), HasSubstr(why)));
    }
  }
  const auto outcome = run_cohort({"trace", folder_ / "dumps"});
  EXPECT_THAT(outcome.out, StartsWith(summary_));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("huge: has 1099511627776 bytes, and at most 1073741824 are read (left out)"),
                                 HasSubstr("link: is a symbolic link; name the file itself (left out)")));
}

TEST_F(TraceCommand, HelpHasExamples) {
  const auto outcome = run_cohort({"trace", "--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("cohort trace /tmp/trace_*"));
}

}  // namespace
