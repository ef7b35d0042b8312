// SPDX-License-Identifier: BSD-3-Clause
#include "observe/trace_analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "made_dumps.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using observe::analyse;
using observe::FindingKind;
using observe::TraceDump;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A job of several ranks in one group, "g", unless a test adds more groups.
class Job {
 public:
  explicit Job(int ranks) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    for (int rank = 0; rank < ranks; ++rank) groups_.push_back(&ranks_.emplace_back(rank).join("g", all));
  }

  observe::GroupTrace& group(int rank) { return *groups_.at(static_cast<std::size_t>(rank)); }
  MadeRank& rank(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  void all_run(const Call& call) {
    for (auto* const group : groups_) run(*group, call);
  }
  std::vector<TraceDump> dumps(const DumpOptions& options = {}) const {
    std::vector<TraceDump> result;
    for (const auto& rank : ranks_) result.push_back(rank.dump(options));
    return result;
  }
  std::vector<TraceDump> dumps_without(int rank) const {
    auto result = dumps();
    result.erase(result.begin() + rank);
    return result;
  }

 private:
  std::deque<MadeRank> ranks_;
  std::vector<observe::GroupTrace*> groups_;
};

TEST(TraceAnalysisTest, EverythingFinished) {
  Job job(3);
  job.all_run({.sequence = 1});
  job.all_run({.op = "barrier", .sequence = 2, .sizes = {}});
  const auto report = analyse(job.dumps());
  EXPECT_EQ(report.verdict, "all ranks finished everything they started");
  EXPECT_TRUE(report.is_fine);
  EXPECT_THAT(report.findings, IsEmpty());
  ASSERT_EQ(report.groups.size(), 1U);
  ASSERT_EQ(report.groups[0].members.size(), 3U);
  EXPECT_EQ(report.groups[0].members[1].last_completed, 2);
  EXPECT_EQ(report.groups[0].members[1].last_completed_op, "barrier");
  EXPECT_THAT(report.groups[0].members[1].in_flight, IsEmpty());
}

TEST(TraceAnalysisTest, RankThatNeverCame) {
  Job job(4);
  job.all_run({.op = "broadcast", .sequence = 16});
  for (const int rank : {0, 1, 3}) begin(job.group(rank), {.op = "all_reduce", .sequence = 17});
  const std::string verdict =
      "rank 2 never started all_reduce #17 of group g (it last finished #16 broadcast); ranks 0, 1, 3 wait in it";
  const auto report = analyse(job.dumps());
  EXPECT_EQ(report.verdict, verdict);
  EXPECT_FALSE(report.is_fine);
  EXPECT_EQ(report.findings[0].kind, FindingKind::not_reached);
  EXPECT_EQ(report.findings[0].sequence, 17);
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(2));
  EXPECT_THAT(report.groups[0].members[0].in_flight, ElementsAre("#17 all_reduce [4] f32"));
  EXPECT_EQ(analyse(job.dumps({.only_active = true})).verdict, verdict) << "the status knows what is not listed";
}

TEST(TraceAnalysisTest, RankThatNeverCameAnywhere) {
  Job job(3);
  for (const int rank : {0, 1}) begin(job.group(rank), {.op = "barrier", .sequence = 1, .sizes = {}});
  EXPECT_EQ(analyse(job.dumps()).verdict,
            "rank 2 never started barrier #1 of group g (it finished nothing before); ranks 0, 1 wait in it");
}

TEST(TraceAnalysisTest, SeveralAbsentAndSomeGaveUp) {
  Job job(5);
  job.all_run({.sequence = 1});
  begin(job.group(0), {.sequence = 2});
  for (const int rank : {1, 4}) job.group(rank).failed(begin(job.group(rank), {.sequence = 2}));
  EXPECT_EQ(
      analyse(job.dumps()).verdict,
      "ranks 2, 3 never started all_reduce #2 of group g (rank 2: it last finished #1 all_reduce); rank 0 waits in "
      "it, ranks 1, 4 gave up on it");
}

TEST(TraceAnalysisTest, AbsentRankIsInAnotherGroup) {
  Job job(3);
  auto& pair = job.rank(1).join("h", {1, 2}, "pair");
  job.rank(2).join("h", {1, 2}, "pair");
  begin(pair, {.op = "broadcast", .sequence = 1});
  for (const int rank : {0, 2}) begin(job.group(rank), {.sequence = 1});
  const auto report = analyse(job.dumps());
  EXPECT_EQ(report.verdict,
            "rank 2 never started broadcast #1 of group pair (it is in all_reduce #1 of group g); rank 1 waits in it");
  ASSERT_EQ(report.findings.size(), 2U) << "the earlier one first";
  EXPECT_EQ(
      report.findings[1].sentence,
      "rank 1 never started all_reduce #1 of group g (it is in broadcast #1 of group pair); ranks 0, 2 wait in it");
  EXPECT_EQ(analyse(job.dumps(), "g").verdict, report.findings[1].sentence);
  EXPECT_EQ(analyse(job.dumps(), "pair").verdict, report.verdict);
  EXPECT_ERROR(ValueError, analyse(job.dumps(), "x"), "g, pair");
}

TEST(TraceAnalysisTest, DifferentOperations) {
  Job job(3);
  job.all_run({.sequence = 16});
  for (const int rank : {0, 2}) begin(job.group(rank), {.op = "all_reduce", .sequence = 17});
  begin(job.group(1), {.op = "reduce", .sequence = 17});
  const auto report = analyse(job.dumps());
  EXPECT_EQ(report.verdict,
            "ranks disagree at #17 of group g: rank 1 called reduce [4] f32, ranks 0, 2 all_reduce [4] f32");
  EXPECT_EQ(report.findings[0].kind, FindingKind::mismatch);
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(1));
}

TEST(TraceAnalysisTest, DifferentSizesAndDtypes) {
  for (const bool sizes : {true, false}) {
    Job job(3);
    for (const int rank : {0, 1}) begin(job.group(rank), {.sequence = 1, .sizes = {4, 2}});
    begin(job.group(2),
          sizes ? Call{.sequence = 1, .sizes = {9}} : Call{.sequence = 1, .sizes = {4, 2}, .dtype = DType::f64});
    EXPECT_EQ(analyse(job.dumps()).verdict, std::string("ranks disagree at #1 of group g: rank 2 called all_reduce ") +
                                                (sizes ? "[9] f32" : "[4, 2] f64") +
                                                ", ranks 0, 1 all_reduce [4, 2] f32");
  }
}

TEST(TraceAnalysisTest, SizesThatMayDiffer) {
  Job job(2);
  for (const auto* const op : {"all_to_all", "barrier", "all_to_all_single"}) {
    run(job.group(0), {.op = op, .sequence = 1, .sizes = {4}});
    run(job.group(1), {.op = op, .sequence = 1, .sizes = {5}});
    EXPECT_TRUE(analyse(job.dumps()).is_fine) << op;
    for (int rank = 0; rank < 2; ++rank) job.rank(rank).recorder().reset_all();
  }
}

TEST(TraceAnalysisTest, EverybodyIsThere) {
  Job job(3);
  run(job.group(1), {.sequence = 1});
  for (const int rank : {0, 2}) begin(job.group(rank), {.sequence = 1});
  auto report = analyse(job.dumps());
  EXPECT_EQ(report.verdict, "all ranks reached all_reduce #1 of group g; ranks 0, 2 wait in it, rank 1 finished it");
  EXPECT_EQ(report.findings[0].kind, FindingKind::in_progress);
  EXPECT_FALSE(report.is_fine);
}

TEST(TraceAnalysisTest, MissingDump) {
  Job job(3);
  job.all_run({.sequence = 1});
  auto report = analyse(job.dumps_without(1));
  EXPECT_EQ(report.verdict, "no dump of rank 1; the other ranks finished everything they started");
  EXPECT_THAT(report.missing_ranks, ElementsAre(1));
  EXPECT_FALSE(report.is_fine);

  for (const int rank : {0, 2}) begin(job.group(rank), {.sequence = 2});
  report = analyse(job.dumps_without(1));
  EXPECT_EQ(report.verdict,
            "no dump of rank 1, which may never have started all_reduce #2 of group g; ranks 0, 2 wait in it");
  EXPECT_EQ(report.findings[0].kind, FindingKind::missing_dump);
}

TEST(TraceAnalysisTest, ReceiveWithoutSend) {
  Job job(3);
  job.all_run({.op = "barrier", .sequence = 5, .sizes = {}});
  const Call receive{.op = "recv", .sequence = 3, .peer = 0, .is_p2p = true};
  begin(job.group(1), receive);
  auto report = analyse(job.dumps());
  EXPECT_EQ(report.verdict,
            "rank 1 waits in recv #3 [4] f32 from rank 0 of group g, and rank 0 has no send to it under way (it last "
            "finished #5 barrier)");
  EXPECT_EQ(report.findings[0].kind, FindingKind::unmatched);
  EXPECT_THAT(report.findings[0].ranks, ElementsAre(0));
  EXPECT_THAT(analyse(job.dumps_without(0)).verdict, HasSubstr("no dump of rank 0"));

  begin(job.group(0), {.op = "send", .sequence = 1, .sizes = {8}, .peer = 1, .is_p2p = true});
  report = analyse(job.dumps());
  EXPECT_EQ(report.verdict,
            "rank 1 waits in recv #3 [4] f32 from rank 0 of group g, rank 0 is in send #1 [8] f32 to it");
  EXPECT_EQ(report.findings[0].kind, FindingKind::mismatch);
}

TEST(TraceAnalysisTest, SendAndReceiveFromAny) {
  Job job(2);
  begin(job.group(0), {.op = "send", .sequence = 1, .peer = 1, .is_p2p = true});
  EXPECT_THAT(
      analyse(job.dumps()).verdict,
      HasSubstr("rank 0 waits in send #1 [4] f32 to rank 1 of group g, and rank 1 has no recv from it under way"));
  begin(job.group(1), {.op = "recv", .sequence = 1, .is_p2p = true});
  EXPECT_EQ(analyse(job.dumps()).findings[0].kind, FindingKind::in_progress);

  Job other(2);
  begin(other.group(1), {.op = "recv", .sequence = 1, .is_p2p = true});
  EXPECT_EQ(analyse(other.dumps()).verdict,
            "rank 1 waits in recv #1 [4] f32 from any rank of group g, and no rank has a send to it under way");
}

TEST(TraceAnalysisTest, LateRankIsNotAtFaultWhileNobodyWaits) {
  Job job(2);
  run(job.group(0), {.op = "broadcast", .sequence = 1});  // the root has sent its data and continued
  EXPECT_TRUE(analyse(job.dumps()).is_fine);
}

TEST(TraceAnalysisTest, RanksThatAreThreadsShareADump) {
  MadeRank process(0);
  auto& zero = process.join("g", {0, 1});
  observe::GroupTrace one({.id = "g", .backend = "thread", .global_ranks = {0, 1}, .rank = 1, .size = 2},
                          process.recorder());
  run(zero, {.sequence = 1});
  run(one, {.sequence = 1});
  begin(zero, {.sequence = 2});
  EXPECT_EQ(analyse({process.dump()}).verdict,
            "rank 1 never started all_reduce #2 of group g (it last finished #1 all_reduce); rank 0 waits in it");
}

TEST(TraceAnalysisTest, GroupsOfOneNameAreToldApart) {
  MadeRank rank(0);
  rank.join("a", {0}, "dp");
  rank.join("b", {0}, "dp");
  const auto report = analyse({rank.dump()});
  EXPECT_EQ(report.groups[0].group.name, "dp (a)");
  EXPECT_EQ(report.groups[1].group.name, "dp (b)");
}

TEST(TraceAnalysisTest, TwoDumpsOfOneRankAreRefused) {
  const MadeRank rank(3);
  EXPECT_ERROR(ValueError, analyse({rank.dump(), rank.dump()}), "both dumps of rank 3");
}

}  // namespace
}  // namespace cohort::test
