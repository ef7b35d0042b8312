// SPDX-License-Identifier: BSD-3-Clause
//
// `cohort doctor` as a program: what it prints and returns in made-up environments.
#include <cohort/secret.h>
#include <cohort/version.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "support/temporary.h"

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string output;
};

/// Runs the tool with these variables ("A=1 B=2") and no others.
Outcome run_doctor(const std::string& variables, const std::string& arguments) {
  const auto command = fmt::format("env -i {} {} doctor {} 2>&1", variables, COHORT_TOOL, arguments);
  FILE* const pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return {};
  Outcome outcome;
  std::array<char, 4096> chunk{};
  while (const auto n = std::fread(chunk.data(), 1, chunk.size(), pipe)) outcome.output.append(chunk.data(), n);
  const int status = ::pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

struct Examined {
  int code = -1;
  json report;

  /// The problem of this id; null when there is none.
  json problem(std::string_view id) const {
    for (const auto& problem : report.at("problems")) {
      if (problem.at("id") == id) return problem;
    }
    return nullptr;
  }
};

Examined examine(const std::string& variables) {
  const auto outcome = run_doctor(variables, "--json");
  return {.code = outcome.code, .report = json::parse(outcome.output)};
}

/// A file with a good secret and this mode.
std::string secret_file(const cohort::test::TemporaryFolder& folder, mode_t mode) {
  auto path = folder / "job.secret";
  cohort::Secret::generate().write_new(path);
  EXPECT_EQ(::chmod(path.c_str(), mode), 0);
  return path;
}

TEST(Doctor, TextNamesEverySection) {
  const auto outcome = run_doctor("", "");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (const auto* const word : {"cohort " COHORT_VERSION, "Backends", "CPUs", "Memory", "Limits", "Network", "GPUs",
                                 "Launch environment", "Problems"}) {
    EXPECT_THAT(outcome.output, HasSubstr(word));
  }
}

TEST(Doctor, JsonHasTheDocumentedKeys) {
  const auto [code, report] = examine("");
  EXPECT_EQ(code, 0);
  for (const auto* const key :
       {"versions", "backends", "cpu", "memory", "limits", "host", "interfaces", "gpu", "launch", "problems"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
  EXPECT_EQ(report["versions"]["cohort"], COHORT_VERSION);
  EXPECT_GE(report["cpu"]["usable"], 1);
  EXPECT_LE(report["cpu"]["usable"], report["cpu"]["in_affinity_mask"]);
  EXPECT_GE(report["cpu"]["numa_nodes"], 1);
  EXPECT_GT(report["memory"]["total"], 0);
  EXPECT_TRUE(report["launch"]["found"].is_null());
}

TEST(Doctor, HelpDocumentsEveryKeyOfTheJson) {
  const auto help = run_doctor("", "--help").output;
  const auto report = examine("").report;
  for (const auto& [key, value] : report.items()) {
    EXPECT_THAT(help, HasSubstr("\n  " + key));
    if (!value.is_object()) continue;
    for (const auto& entry : value.items()) EXPECT_THAT(help, HasSubstr(entry.key())) << key;
  }
}

TEST(Doctor, BackendsThatAreMissingSayWhy) {
  const auto report = examine("").report;
  for (const auto& backend : report["backends"]) {
    EXPECT_TRUE(backend["built_in"] || !backend["hint"].get<std::string>().empty()) << backend;
  }
  EXPECT_THAT(report["backends"].dump(),
              AllOf(HasSubstr("shm"), HasSubstr("gloo"), HasSubstr("mpi"), HasSubstr("nccl"), HasSubstr("hybrid")));
}

TEST(Doctor, SaysWhatAutoWouldTake) {
  const auto report = examine("").report;
  EXPECT_EQ(report["auto"]["one_host"], "shm");
  EXPECT_THAT(report["auto"]["several_hosts"].get<std::string>(), AnyOf("hybrid over gloo", HasSubstr("libgloo-dev")));
  EXPECT_THAT(report["auto"]["cuda"].get<std::string>(), AnyOf("nccl", ::testing::StartsWith("none: ")));
  EXPECT_EQ(examine("COHORT_ENGINE=mpi").report["auto"]["several_hosts"].get<std::string>().find("hybrid over gloo"),
            std::string::npos);
  EXPECT_THAT(run_doctor("", "").output, HasSubstr("What \"auto\" chooses"));
}

TEST(Doctor, CountsTheCpusOfTheAffinityMask) {
  const auto outcome = run_doctor("taskset -c 0", "--json");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(json::parse(outcome.output)["cpu"]["usable"], 1);
}

TEST(Doctor, FindsLoopback) {
  bool found = false;
  const auto report = examine("").report;
  for (const auto& interface : report["interfaces"]) {
    found |= interface["loopback"] && interface["addresses"].dump().find("127.0.0.1") != std::string::npos;
  }
  EXPECT_TRUE(found);
}

TEST(Doctor, SaysWhichVariableTheRankCameFrom) {
  const auto [code, report] = examine("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4");
  const auto& found = report["launch"]["found"];
  ASSERT_FALSE(found.is_null()) << report["launch"];
  EXPECT_EQ(found["rank"], 1);
  EXPECT_EQ(found["size"], 4);
  EXPECT_EQ(found["found_in"]["rank"], "OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(report["launch"]["variables"]["OMPI_COMM_WORLD_SIZE"], "4");
}

TEST(Doctor, RankWithoutWorldSizeIsAnError) {
  const auto examined = examine("RANK=1");
  EXPECT_EQ(examined.code, 1);
  EXPECT_EQ(examined.problem("launch_environment")["severity"], "error");
  EXPECT_THAT(examined.report["launch"]["error"], HasSubstr("WORLD_SIZE"));
}

TEST(Doctor, MalformedVariableIsAnErrorAndTheRestIsStillReported) {
  const auto examined = examine("COHORT_LOG=shout");
  EXPECT_EQ(examined.code, 1);
  EXPECT_THAT(examined.problem("launch_environment")["what"], HasSubstr("COHORT_LOG"));
  EXPECT_GE(examined.report["cpu"]["usable"], 1);
}

TEST(Doctor, SecretFileThatOthersMayReadIsAnError) {
  const cohort::test::TemporaryFolder folder;
  const auto examined = examine("COHORT_SECRET_FILE=" + secret_file(folder, 0644));
  EXPECT_EQ(examined.code, 1);
  EXPECT_THAT(examined.problem("secret_file")["what"], HasSubstr("chmod 600"));
}

TEST(Doctor, MissingSecretFileIsAnError) {
  const auto examined = examine("COHORT_SECRET_FILE=/nowhere/job.secret");
  EXPECT_EQ(examined.code, 1);
  EXPECT_EQ(examined.problem("secret_file")["severity"], "error");
}

TEST(Doctor, GoodSecretFileIsNoProblemAndIsNotShown) {
  const cohort::test::TemporaryFolder folder;
  const auto good = secret_file(folder, 0600);
  const auto outcome = run_doctor("COHORT_SECRET_FILE=" + good, "");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr(cohort::Secret::load(good).hex())));
}

TEST(Doctor, SeveralHostsWithoutASecretIsAnError) {
  const std::string job = "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=29500";
  EXPECT_EQ(examine(job).problem("no_secret")["severity"], "error");

  const auto insecure = examine(job + " COHORT_INSECURE=1");
  EXPECT_TRUE(insecure.problem("no_secret").is_null());
  EXPECT_EQ(insecure.problem("insecure")["severity"], "warning");
}

TEST(Doctor, OneHostNeedsNoSecret) {
  const auto examined = examine("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 OMP_NUM_THREADS=1");
  EXPECT_TRUE(examined.problem("no_secret").is_null());
  EXPECT_EQ(examined.code, 0);
}

TEST(Doctor, MasterThatDoesNotResolveIsAnError) {
  const auto examined = examine("RANK=0 WORLD_SIZE=2 MASTER_ADDR=no-such-host.invalid MASTER_PORT=29500");
  EXPECT_EQ(examined.code, 1);
  EXPECT_THAT(examined.problem("master_addr")["what"], HasSubstr("no-such-host.invalid"));
}

TEST(Doctor, IncompleteTlsFilesAreAnError) {
  EXPECT_EQ(examine("COHORT_TLS_CA=/ca.pem COHORT_TLS_CERT=/cert.pem").problem("tls_incomplete")["severity"], "error");
}

TEST(Doctor, LowOpenFileLimitIsAWarning) {
  const auto outcome = run_doctor("sh -c 'ulimit -n 256; exec \"$0\" \"$@\"'", "--json");
  const Examined examined{.code = outcome.code, .report = json::parse(outcome.output)};
  EXPECT_EQ(examined.code, 0);
  EXPECT_EQ(examined.problem("open_files")["severity"], "warning");
  EXPECT_EQ(examined.report["limits"]["open_files"], 256);
}

TEST(Doctor, EveryProblemHasAFix) {
  const auto report = examine("RANK=0 COHORT_SECRET_FILE=/nowhere").report;
  for (const auto& problem : report["problems"]) {
    EXPECT_FALSE(problem["fix"].get<std::string>().empty()) << problem;
  }
}

TEST(Doctor, EnvironmentThatIsNotUtf8StillGivesJson) {
  EXPECT_EQ(examine("COHORT_RUN_ID=\"$(printf '\\377')\"").code, 0);
}

}  // namespace
