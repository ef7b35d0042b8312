// SPDX-License-Identifier: BSD-3-Clause
//
// `cohort bench` as a user calls it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/temporary.h"
#include "tools/launched.h"

namespace {

using namespace cohort::test;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(BenchRun, MeasuresEveryCollectiveAndFindsNothingWrong) {
  const TemporaryFolder folder;
  const auto outcome =
      run_cohort({"bench", "all", "--ranks", "2", "--sizes", "4,4K,1M", "-n", "2", "-w", "1", "--memory", "both",
                  "--backends", "shm,thread", "--json", folder / "all.json", "--plot", folder / "all.svg"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("# Out of bounds values : 0 OK"));
  int measured = 0;
  const auto report = json::parse(contents(folder / "all.json"));
  for (const auto& result : report["results"]) {
    if (result.contains("refusal")) continue;
    ++measured;
    EXPECT_EQ(result.value("wrong", -1), result["collective"] == "barrier" ? -1 : 0) << result;
    EXPECT_GT(result["p50_us"], 0) << result;
    EXPECT_GE(result["p99_us"], result["p50_us"]) << result;
  }
  EXPECT_GE(measured, 8 * 2 * 2) << "8 collectives, 2 backends, 2 kinds of memory";
  EXPECT_THAT(contents(folder / "all.svg"), AllOf(StartsWith("<svg "), HasSubstr("shm (group)"), HasSubstr("</svg>")));
}

TEST(BenchRun, UnderALauncherItsRanksAreTheLaunchers) {
  const auto outcome = run_cohort({"run", "-n", "3", COHORT_TOOL, "bench", "--sizes", "1K", "-n", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("3 ranks"), HasSubstr("0 OK")));
}

TEST(BenchRun, ResultsThatCannotBeKeptAreRefusedBeforeTheWork) {
  for (const auto* const flag : {"--json", "--plot"}) {
    const auto outcome = run_cohort({"bench", "--ranks", "2", flag, "/nowhere/results"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("cannot write /nowhere/results"));
    EXPECT_THAT(outcome.out, Not(HasSubstr("all_reduce")));
  }
}

TEST(BenchRun, ABackendThatCannotStartIsReportedAtOnce) {
  // Neither MPI's launcher nor a GPU is there, or the backend is not even built.
  for (const auto* const backend : {"mpi", "nccl"}) {
    const auto start = std::chrono::steady_clock::now();
    const auto outcome = run_cohort({"bench", "--ranks", "3", "--backends", backend, "--sizes", "4", "-n", "1"},
                                    {.variables = {{"CUDA_VISIBLE_DEVICES", "-1"}}});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20)) << "of the 60 of its timeout";
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr("not measured"), HasSubstr("ended before it was ready"), HasSubstr("rank ")));
  }
}

TEST(BenchRun, PeersTakeTurnsWithOurs) {
  const TemporaryFolder folder;
  std::ofstream(folder / "peers.json") << R"([{"name": "scripted:slow", "command": ["sh", "-c",
      "echo ready; while read line; do echo \"$ANSWER\"; done"],
      "environment": {"ANSWER": "{\"us\": [7000], \"batch\": 1, \"wrong\": 0}"}}])";
  const auto outcome =
      run_cohort({"bench", "--ranks", "2", "--sizes", "4", "-n", "1", "--peers", folder / "peers.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("shm (ordinary)"), HasSubstr("7000"), HasSubstr("scripted:slow")));
}

TEST(BenchRun, AFileOfPeersThatIsWrongIsNamed) {
  const TemporaryFolder folder;
  const auto file = folder / "peers.json";
  const auto answer_to = [&](const std::string& text) {
    std::ofstream(file) << text;
    return run_cohort({"bench", "--ranks", "2", "--peers", file});
  };
  for (const auto* const text :
       {"", "[{}]", R"([{"name": "a", "command": []}])", R"([{"name": "a", "command": ["no_such_driver"]}])"}) {
    const auto outcome = answer_to(text);
    EXPECT_EQ(outcome.code, 2) << text;
    EXPECT_THAT(outcome.err, HasSubstr("--peers " + file)) << text;
  }
}

TEST(BenchRun, WrongWordsAreExplained) {
  EXPECT_THAT(run_cohort({"bench", "allreduc"}).err, AllOf(HasSubstr("allreduc"), HasSubstr("all_reduce, broadcast")));
  EXPECT_THAT(run_cohort({"bench", "-d", "f99"}).err, HasSubstr("did you mean \"f16\"?"));
  EXPECT_THAT(run_cohort({"bench", "--ranks", "2", "-r", "2"}).err, HasSubstr("--root 2: there are 2 ranks"));
}

}  // namespace
