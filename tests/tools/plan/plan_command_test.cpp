// SPDX-License-Identifier: BSD-3-Clause
//
// `cohort plan`, and `cohort trace` of a recorded step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "made_steps.h"
#include "support/temporary.h"
#include "tools/launched.h"

namespace {

using namespace cohort::test;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class PlanCommand : public testing::Test {
 protected:
  PlanCommand() {
    cohort::save_step(file_, data_parallel_step(4).done());
    cohort::save_step(plain_, data_parallel_step(4).without_times());
  }

  TemporaryFolder folder_;
  std::string file_ = folder_ / "ddp.step";
  std::string plain_ = folder_ / "plain.step";
};

TEST_F(PlanCommand, CountsBytesWithoutACluster) {
  const auto outcome = run_cohort({"plan", file_});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out, file_ + R"(: 11 nodes, recorded on 4 ranks, 1 replay measured

  group     ranks  operation                count   async         bytes
  mesh_dp       4  all_reduce                   3       3       2.9 MiB

To predict times, describe a cluster: --cluster FILE, or --intra and --inter, or --fit RANKS.

)");
}

TEST_F(PlanCommand, PredictsForSeveralNumbersOfRanks) {
  // A ring of 4: 2 * 3 messages of 10 us and 1.5 MB at 1 GB/s for each of three collectives.
  const auto outcome =
      run_cohort({"plan", file_, "--intra", "10:1", "--algorithm", "ring", "--world", "1,4", "--json"});
  EXPECT_EQ(outcome.err, "");
  const auto step = json::parse(outcome.out).at(0);
  EXPECT_EQ(step["world"], 4);
  EXPECT_EQ(step["traffic"][0]["bytes"], 3'000'000);
  EXPECT_EQ(step["groups"][0]["label"], "mesh_dp");
  EXPECT_EQ(step["worlds"][0]["as_recorded"]["communication_s"], 0);
  EXPECT_NEAR(step["worlds"][0]["as_recorded"]["step_s"].get<double>(), 4.5e-3, 1e-9);
  EXPECT_NEAR(step["worlds"][1]["as_recorded"]["communication_s"].get<double>(), 3 * 1.56e-3, 1e-9);
  // They run from 2 ms on, one after the other; then the optimizer.
  EXPECT_NEAR(step["worlds"][1]["as_recorded"]["step_s"].get<double>(), 2e-3 + 3 * 1.56e-3 + 0.5e-3, 1e-9);
}

TEST_F(PlanCommand, PrintsATable) {
  const auto outcome = run_cohort({"plan", file_, "--intra", "1:100", "--inter", "10:1", "--ranks-per-host", "4",
                                   "--world", "4,8", "--buckets", "1M"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("4 ranks on a host; inside it 1 us, 100 GB/s; between hosts 10 us, 1 GB/s; best "
                                     "algorithms; overlap 1\nmesh_dp grows with the number of ranks"));
  EXPECT_THAT(outcome.out, HasSubstr("best bucket"));
  EXPECT_THAT(outcome.out, HasSubstr("1.0 MiB"));
}

TEST_F(PlanCommand, SaysThatOnlyCommunicationIsPredicted) {
  const auto outcome = run_cohort({"plan", plain_, "--intra", "1:100"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("only communication is predicted"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("best bucket")));
}

TEST_F(PlanCommand, ReadsAndWritesClusters) {
  const auto path = folder_ / "cluster.json";
  auto outcome = run_cohort({"plan", file_, "--intra", "4:200", "--overlap", "0.5", "--save-cluster", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  outcome = run_cohort({"plan", file_, "--cluster", path});
  EXPECT_THAT(outcome.out, HasSubstr("one host; inside it 4 us, 200 GB/s; best algorithms; overlap 0.5"));
}

TEST_F(PlanCommand, FitsThisMachine) {
  const auto outcome = run_cohort({"plan", file_, "--fit", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("fitted to all_reduces of 2 ranks on this machine"), HasSubstr("64 MiB")));
}

TEST_F(PlanCommand, DrawsCurves) {
  const auto path = folder_ / "plot.svg";
  const auto outcome = run_cohort({"plan", file_, "--intra", "10:1", "--plot", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto svg = content_of(path);
  EXPECT_THAT(svg,
              AllOf(HasSubstr("<svg"), HasSubstr("ms over ranks"), HasSubstr("over bucket size"), HasSubstr("</svg>")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf\"")));
}

TEST_F(PlanCommand, DrawsTheGraph) {
  auto outcome = run_cohort({"plan", file_, "--draw", folder_ / "graph.dot"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(content_of(folder_ / "graph.dot"), HasSubstr("digraph"));
  outcome = run_cohort({"plan", file_, "--draw", folder_ / "graph.svg"});
  if (std::filesystem::exists("/usr/bin/dot")) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(content_of(folder_ / "graph.svg"), HasSubstr("</svg>"));
  }
  outcome = run_cohort({"plan", file_, "--draw", folder_ / "graph.svg"}, {.variables = {{"PATH", "/nowhere"}}});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("Graphviz's dot is not installed (Debian: apt-get install graphviz)"));
}

TEST_F(PlanCommand, SaysWhatIsWrong) {
  struct Wrong {
    Strings arguments;
    std::string why;
  };
  std::ofstream(folder_ / "bad.json") << "{}";
  std::ofstream(folder_ / "bad.step") << "cohort step 1\nno graph\n";
  auto crowded = data_parallel_step(4).without_times();
  crowded.graph.nodes.back().group_size = std::numeric_limits<int>::max();
  cohort::save_step(folder_ / "crowded.step", crowded);
  for (const auto& [arguments, why] : {
           Wrong{{"plan"}, "nothing to plan: name the file of a recorded step"},
           Wrong{{"plan", folder_ / "missing"}, "No such file"},
           Wrong{{"plan", folder_ / "bad.step"}, "is no recorded step"},
           Wrong{{"plan", folder_ / "crowded.step"}, "of a captured graph: a group has too many ranks"},
           Wrong{{"plan", folder_ / "bad.json"}, "is no recorded step: the text does not begin"},
           Wrong{{"plan", "/dev/zero"}, "/dev/zero: is not a regular file"},
           Wrong{{"plan", file_, "--cluster", "/dev/zero"}, "/dev/zero: is not a regular file"},
           Wrong{{"plan", file_, "--cluster", folder_ / "bad.json"}, "\"intra\" is missing"},
           Wrong{{"plan", file_, "--intra", "5"}, "as in --intra 10:25"},
           Wrong{{"plan", file_, "--inter", "5:5"}, "--inter is given without --intra"},
           Wrong{{"plan", file_, "--intra", "5:5", "--inter", "5:5"}, "how many ranks a host has"},
           Wrong{{"plan", file_, "--intra", "5:5", "--ranks-per-host", "2"}, "the link between hosts is not given"},
           Wrong{{"plan", file_, "--intra", "5:5", "--grow", "tp"},
                 "--grow tp: the step has no such group, only mesh_dp"},
           Wrong{{"plan", file_, "--plot", folder_ / "x.svg"}, "--plot: describe a cluster"},
           Wrong{{"plan", file_, "--draw", folder_ / "x.bmp"}, "must end with .svg"},
           Wrong{{"plan", file_, file_, "--draw", folder_ / "x.dot"}, "take one recorded step"},
       }) {
    const auto outcome = run_cohort(arguments);
    EXPECT_EQ(outcome.code, 1) << why;
    EXPECT_THAT(outcome.err, HasSubstr(why));
  }
  EXPECT_EQ(run_cohort({"plan", file_, "--fold", "x"}).code, 2);
}

TEST_F(PlanCommand, TraceShowsWhereTheTimeGoes) {
  MadeStep step({made_group("7f", 0, 1, 2, "mesh_dp")});
  step.compute(6'000'000, "aten::addmm").collective("all_reduce", 4096, true, 1'000'000).wait(0, 2'000'000);
  step.collective("broadcast", 64, false, 500'000).compute(500'000, "aten::add_");
  auto recorded = step.done();
  recorded.timeline.replays.front().nodes[1].completed = 9'000'000;
  cohort::save_step(file_, recorded);
  const auto outcome = run_cohort({"trace", file_, "--chrome", folder_ / "t.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, file_ + R"(: 5 nodes, 1 replay measured; the typical one took 10.000 ms
  computing                   6.500 ms   65.0%
  issuing collectives         1.000 ms   10.0%
  blocking collectives        0.500 ms    5.0%  exposed communication
  waiting                     2.000 ms   20.0%  exposed communication
Asynchronous collectives were in flight for 3.000 ms; the step waited for 66.7% of that.

  operators, together                           count          ms   share
  aten::addmm                                       1       6.000   60.0%
  wait                                              1       2.000   20.0%
  all_reduce                                        1       1.000   10.0%
  aten::add_                                        1       0.500    5.0%
  broadcast                                         1       0.500    5.0%

    node  slowest nodes                                         ms   share
       0  aten::addmm                                        6.000   60.0%
       2  wait                                               2.000   20.0%
       4  aten::add_                                         0.500    5.0%

    node  collectives                   group             ranks       bytes   begins ms    lasts ms
       1  all_reduce                    mesh_dp               2     4.0 KiB       6.000       3.000  async
       3  broadcast                     mesh_dp               2        64 B       9.000       0.500

)");
  const auto events = json::parse(content_of(folder_ / "t.json"))["traceEvents"];
  const auto named = [&](const std::string& name) {
    return std::count_if(events.begin(), events.end(), [&](const json& each) { return each["name"] == name; });
  };
  EXPECT_EQ(named("all_reduce"), 2);  // on the thread, and in flight
  EXPECT_EQ(named("aten::addmm"), 1);
  EXPECT_EQ(json::parse(run_cohort({"trace", file_, "--json"}).out)["exposed_ns"], 2'500'000);
}

TEST_F(PlanCommand, TraceNeedsATimeline) {
  const auto outcome = run_cohort({"trace", plain_});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("has a graph but no timeline: call measure()"));
}

}  // namespace
