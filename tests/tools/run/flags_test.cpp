// SPDX-License-Identifier: BSD-3-Clause
//
// The command line of `cohort run`, as users type it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/launched.h"

namespace {

using namespace cohort::test;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto show_size = "echo $WORLD_SIZE";

TEST(RunFlags, CountsRanksInEverySpelling) {
  for (const Strings& count :
       {Strings{"-n", "2"}, {"-n2"}, {"-np", "2"}, {"--nproc-per-node=2"}, {"--nproc_per_node", "2"}}) {
    Strings arguments{"run"};
    arguments.insert(arguments.end(), count.begin(), count.end());
    arguments.insert(arguments.end(), {"sh", "-c", show_size});
    const auto outcome = run_cohort(arguments);
    EXPECT_THAT(lines_of(outcome.out, ""), testing::ElementsAre("[rank 0] 2", "[rank 1] 2"))
        << count.front() << outcome.err;
  }
}

TEST(RunFlags, AcceptsATorchrunCommandLine) {
  const auto outcome =
      run_cohort({"run", "--nnodes=1:1", "--nproc_per_node=1", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0",
                  "--rdzv_conf", "timeout=3,join_timeout=9", "--monitor_interval=0.5", "--no_python", "--tee", "3",
                  "--role=x", "sh", "-c", show_size});
  EXPECT_EQ(outcome.out, "1\n") << outcome.err;
}

TEST(RunFlags, WhatFollowsTheProgramIsItsOwn) {
  EXPECT_EQ(run_cohort({"run", "echo", "-n2", "--help", "--", "run", "doctor"}).out, "-n2 --help -- run doctor\n");
  EXPECT_EQ(run_cohort({"run", "-n", "1", "--", "echo", "--", "-t"}).out, "-- -t\n");
  EXPECT_EQ(run_cohort({"run", "--role", "-x", "sh", "-c", "echo $ROLE_NAME"}).out, "-x\n");
}

TEST(RunFlags, AnUnknownFlagGetsASuggestion) {
  const auto outcome = run_cohort({"run", "--nproc-per-nod=2", "true"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("unknown flag --nproc-per-nod=2; did you mean --nproc-per-node?"));
  EXPECT_THAT(run_cohort({"run", "--max_restart", "2", "true"}).err, HasSubstr("did you mean --max-restarts?"));
  EXPECT_THAT(run_cohort({"run", "-q", "true"}).err, HasSubstr("unknown flag -q"));
}

TEST(RunFlags, BadValuesAreNamed) {
  EXPECT_THAT(run_cohort({"run", "-n", "0", "true"}).err, HasSubstr("--nproc-per-node is \"0\""));
  EXPECT_THAT(run_cohort({"run", "-n", "many", "true"}).err, HasSubstr("auto, cpu or gpu"));
  EXPECT_THAT(run_cohort({"run", "--max-restarts", "-1", "true"}).err, HasSubstr("--max-restarts"));
  EXPECT_THAT(run_cohort({"run", "--rdzv-backend", "etcd", "true"}).err, HasSubstr("--rdzv-backend"));
  EXPECT_THAT(run_cohort({"run", "-n"}).err, HasSubstr("-n needs a value"));
  EXPECT_THAT(run_cohort({"run", "-n", "2"}).err, HasSubstr("no program given"));
  for (const auto* const flag : {"-n", "--max-restarts", "--rdzv-backend"}) {
    EXPECT_NE(run_cohort({"run", flag, "etcd", "true"}).code, 0) << flag;
  }
}

TEST(RunFlags, AMistakeInThePrefixFormatIsExplained) {
  const auto error = [](const std::string& format) {
    const auto outcome = run_cohort({"run", "-n", "2", "--prefix-format", format, "true"});
    EXPECT_EQ(outcome.code, 2);
    return outcome.err;
  };
  EXPECT_THAT(error("[{rnak}] "), AllOf(HasSubstr("there is no placeholder {rnak}; did you mean {rank}?"),
                                        HasSubstr("{rank}, {local_rank}, {node_rank} and {host}")));
  EXPECT_THAT(error("{rank"), HasSubstr("the { at position 1 has no counterpart"));
  EXPECT_THAT(error("rank}"), HasSubstr("the } at position 5 has no counterpart"));
  EXPECT_THAT(error("{}"), HasSubstr("there is no placeholder {}"));
  EXPECT_THAT(error("a\nb"), HasSubstr("cannot contain a line break"));
  const auto both = run_cohort({"run", "--no-prefix", "--prefix-format", "x", "true"});
  EXPECT_NE(both.code, 0);
  EXPECT_THAT(both.err, HasSubstr("--no-prefix"));
}

TEST(Usage, AMistypedCommandGetsASuggestion) {
  const auto outcome = run_cohort({"rum", "-n", "2", "true"});
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("there is no command \"rum\"; did you mean run?"),
                                 HasSubstr("run, secret, bench, doctor, plan, trace")));
  EXPECT_THAT(run_cohort({"docter"}).err, HasSubstr("did you mean doctor?"));
  EXPECT_THAT(run_cohort({"frobnicate"}).err, testing::Not(HasSubstr("did you mean")));
}

TEST(Usage, AMistypedFlagOfEachCommandGetsASuggestion) {
  EXPECT_THAT(run_cohort({"doctor", "--jsn"}).err, HasSubstr("unknown flag --jsn; did you mean --json?"));
  EXPECT_THAT(run_cohort({"trace", "file", "--chrom=x"}).err, HasSubstr("did you mean --chrome?"));
  EXPECT_THAT(run_cohort({"bench", "--backend", "shm"}).err, HasSubstr("did you mean --backends?"));
  EXPECT_THAT(run_cohort({"--verson"}).err, HasSubstr("did you mean --version?"));
}

TEST(Usage, EveryMistakeInACommandLineHasTheSameExitCode) {
  const std::vector<Strings> mistakes = {
      {},
      {"rum"},
      {"--what"},
      {"run"},
      {"run", "--what", "true"},
      {"run", "-n"},
      {"run", "-n", "0", "true"},
      {"run", "--max-restarts", "x", "true"},
      {"run", "--rdzv-backend", "etcd", "true"},
      {"run", "--nnodes", "2", "true"},
      {"secret"},
      {"secret", "a", "b"},
      {"doctor", "--what"},
      {"doctor", "what"},
      {"trace"},
      {"trace", "--what", "f"},
      {"bench", "--what"},
      {"bench", "frob"},
      {"bench", "--iters", "0"},
      {"bench", "--datatype", "f99"},
      {"bench", "--ranks", "2", "--root", "2"},
      {"bench", "--ranks", "2", "--peers", "frob"},
  };
  for (const auto& mistake : mistakes) {
    const auto outcome = run_cohort(mistake);
    EXPECT_EQ(outcome.code, 2) << testing::PrintToString(mistake);
    EXPECT_THAT(outcome.err, testing::StartsWith("cohort")) << testing::PrintToString(mistake);
    EXPECT_EQ(outcome.out, "") << testing::PrintToString(mistake);
  }
  for (const Strings& help : {Strings{"--help"}, {"run", "--help"}, {"bench", "--help"}, {"--version"}}) {
    EXPECT_EQ(run_cohort(help).code, 0) << testing::PrintToString(help);
  }
}

TEST(RunFlags, HelpNamesEveryFlag) {
  const auto outcome = run_cohort({"run", "--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("--nproc-per-node"), HasSubstr("--local-ranks-filter"),
                                 HasSubstr("--grace-period"), HasSubstr("cohort run [FLAGS] PROGRAM")));
  EXPECT_THAT(run_cohort({"--help"}).out, AllOf(HasSubstr("run"), HasSubstr("secret")));
}

}  // namespace
