// SPDX-License-Identifier: BSD-3-Clause
//
// Where the ranks' output goes, and what it looks like there.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "support/temporary.h"
#include "tools/launched.h"

namespace {

using namespace cohort::test;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(RunOutput, ASingleRanksOutputIsPassedOnAsItIs) {
  const auto outcome = run_cohort({"run", "sh", "-c", "printf 'no end'; printf err >&2"});
  EXPECT_EQ(outcome.out, "no end");
  EXPECT_EQ(outcome.err, "err");
}

TEST(RunOutput, LinesOfSeveralRanksBearTheirNames) {
  const auto outcome = run_cohort(run_script(2, "echo out; echo err >&2; printf 'no end'"));
  EXPECT_THAT(lines_of(outcome.out, ""),
              ElementsAre("[rank 0] no end", "[rank 0] out", "[rank 1] no end", "[rank 1] out"));
  EXPECT_THAT(lines_of(outcome.err, ""), ElementsAre("[rank 0] err", "[rank 1] err"));
}

TEST(RunOutput, LinesStayWhole) {
  // Each rank writes its lines in small pieces, as programs do that do not buffer.
  const auto outcome = run_cohort(run_script(
      4, "i=0; while [ $i -lt 200 ]; do for p in a b c d e f g h; do printf $RANK$p; done; echo; i=$((i+1)); done"));
  EXPECT_EQ(outcome.code, 0);
  for (int rank = 0; rank < 4; ++rank) {
    const auto name = std::to_string(rank);
    std::string line;
    for (const char piece : std::string("abcdefgh")) line += name + piece;
    EXPECT_THAT(lines_of(outcome.out, "[rank " + name + "] "),
                testing::AllOf(testing::SizeIs(200), testing::Each(line)));
  }
  EXPECT_THAT(lines_of(outcome.out, ""), testing::SizeIs(800));
}

TEST(RunOutput, WithoutPrefixLinesAreWhatTheRanksWrote) {
  // In pieces, so that lines of several ranks would mix if they were passed on as they come.
  const auto outcome = run_cohort(
      run_script(4, R"(for i in 1 2 3; do printf '{"rank": '; sleep 0.01; printf "$RANK, "; echo '"i": '$i'}'; done)",
                 {"--no-prefix"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  Strings expected;
  for (int rank = 0; rank < 4; ++rank) {
    for (int i = 1; i <= 3; ++i) expected.push_back(fmt::format(R"({{"rank": {}, "i": {}}})", rank, i));
  }
  EXPECT_EQ(lines_of(outcome.out, ""), expected);
}

TEST(RunOutput, APrefixOfOnesOwn) {
  const auto outcome = run_cohort(
      run_script(2, "echo out; echo err >&2", {"--prefix-format", "{{{host}}} {node_rank}.{local_rank}={rank}: "}));
  const auto host = lines_of(contents("/proc/sys/kernel/hostname"), "").front();
  const auto prefix = [&](int rank) { return fmt::format("{{{}}} 0.{}={}: ", host, rank, rank); };
  EXPECT_THAT(lines_of(outcome.out, ""), ElementsAre(prefix(0) + "out", prefix(1) + "out"));
  EXPECT_THAT(lines_of(outcome.err, ""), ElementsAre(prefix(0) + "err", prefix(1) + "err"));
}

TEST(RunOutput, ASingleRankHasAPrefixWhereOneIsAskedFor) {
  EXPECT_EQ(run_cohort({"run", "--prefix-format=#{rank} ", "sh", "-c", "printf 'no end'"}).out, "#0 no end\n");
}

TEST(RunOutput, ACarriageReturnCannotForgeAnothersPrefix) {
  const auto outcome = run_cohort(run_script(2, R"(printf 'own\r[rank 9] forged\n'; printf '\r[rank 9] forged')"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\r")));
  for (const auto& line : lines_of(outcome.out, "")) EXPECT_THAT(line, testing::MatchesRegex(R"(\[rank [01]\] .*)"));
  EXPECT_THAT(lines_of(outcome.out, "[rank 0] "), testing::IsSupersetOf({"[rank 9] forged", "[rank 9] forged"}));
}

TEST(RunOutput, EscapeSequencesCannotForgeAnothersPrefix) {
  const auto script = R"(printf '\033[1A\033[2K[rank 9] forged\n\033[31mred\n\007\b\b\n')";
  const LaunchOptions terminal{.variables = {{"NO_COLOR", "1"}}, .in_terminal = true};
  const auto shown = run_cohort(run_script(2, script), terminal).out;
  EXPECT_THAT(lines_of(shown, "[rank 0] "),
              ElementsAre("\x1b[31mred\x1b[0m\r", "^G^H^H\r", "^[[1A^[[2K[rank 9] forged\r"));
  // A file gets what the ranks wrote.
  EXPECT_THAT(lines_of(run_cohort(run_script(2, script)).out, "[rank 1] "),
              ElementsAre("\x07\b\b", "\x1b[1A\x1b[2K[rank 9] forged", "\x1b[31mred"));
  // So does the report on a rank that failed.
  const auto failed = run_cohort(run_script(2, R"(printf '\033[2Jlast\n'; exit 3)"), terminal).out;
  EXPECT_THAT(failed, testing::AllOf(HasSubstr("    ^[[2Jlast"), Not(HasSubstr("\x1b[2J"))));
}

TEST(RunOutput, AppearsWhenItIsWritten) {
  // A program that is not interactive: it flushes to a terminal with each line, to a pipe when its buffer is full.
  Launched launched(run_script(2, "{ echo hello; exec sleep 60; } | cut -c 1-20"));
  launched.wait_for_output("hello", 2);
  launched.signal(SIGTERM);
  EXPECT_EQ(launched.finish().code, 128 + SIGTERM);
}

TEST(RunOutput, IsWrittenToAPseudoTerminalUnlessAPipeIsAskedFor) {
  const auto script =
      "[ -t 1 ] && echo terminal $TERM $NO_COLOR || echo pipe $TERM $NO_COLOR; [ -t 2 ] || echo pipe >&2";
  const LaunchOptions options{.variables = {{"TERM", "xterm"}}};
  for (const Strings& flags : {Strings{}, {"--pty"}}) {
    const auto outcome = run_cohort(run_script(2, script, flags), options);
    EXPECT_THAT(lines_of(outcome.out, ""), ElementsAre("[rank 0] terminal dumb 1", "[rank 1] terminal dumb 1"));
    EXPECT_THAT(lines_of(outcome.err, ""), ElementsAre("[rank 0] pipe", "[rank 1] pipe"));
  }
  EXPECT_THAT(run_cohort(run_script(1, script, {"--no-pty"}), options).out, "pipe xterm\n");
  EXPECT_THAT(run_cohort(run_script(1, script), {.variables = {{"TERM", "xterm"}}, .in_terminal = true}).out,
              HasSubstr("terminal xterm"));
  EXPECT_EQ(run_cohort({"run", "--pty", "--no-pty", "true"}).code, 2);
}

TEST(RunOutput, APseudoTerminalChangesNoByte) {
  const auto script = R"(printf 'a\nb\r\n\tc\000\377\003\004\032'; echo in | cat)";
  const std::string expected("a\nb\r\n\tc\0\377\003\004\032in\n", 15);
  EXPECT_EQ(run_cohort({"run", "sh", "-c", script}).out, expected);
  EXPECT_EQ(run_cohort({"run", "--no-pty", "sh", "-c", script}).out, expected);
}

TEST(RunOutput, LinesThatEndAsOnWindowsAreShownOnce) {
  const auto outcome = run_cohort(run_script(2, R"(printf 'one\r\ntwo\r\n\r\n')"));
  EXPECT_THAT(lines_of(outcome.out, "[rank 0] "), ElementsAre("", "one", "two"));
}

TEST(RunOutput, AProgressBarOfSeveralRanksIsShownNowAndThenAndAtItsEnd) {
  const TemporaryFolder folder;
  const auto outcome = run_cohort(
      run_script(2, R"(i=0; while [ $i -lt 500 ]; do i=$((i+1)); printf "\rstep $i"; done; printf '\n'; echo done)",
                 {"--log-dir", folder / "logs", "--rdzv-id", "job"}));
  for (const auto* const prefix : {"[rank 0] ", "[rank 1] "}) {
    const auto lines = lines_of(outcome.out, prefix);
    EXPECT_THAT(lines, testing::IsSupersetOf({"step 1", "step 500", "done"}));
    EXPECT_LT(lines.size(), 40U) << "at most one a second";
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "step 500"), 1);
  }
  EXPECT_THAT(contents(folder / "logs/job/attempt_0/0/stdout.log"), HasSubstr("\rstep 7\rstep 8")) << "all of it";
}

TEST(RunOutput, AProgressBarOfTheOnlyRankShownStaysInPlaceOnATerminal) {
  const auto script =
      R"(printf '\r50%%'; sleep 0.1; echo hello >&2; printf '\r100%%'; sleep 0.1; printf '\n'; echo end)";
  const auto outcome = run_cohort(run_script(2, script, {"--local-ranks-filter", "0"}),
                                  {.variables = {{"NO_COLOR", "1"}}, .in_terminal = true});
  EXPECT_EQ(outcome.out,
            "[rank 0] 50%\r\x1b[K[rank 0] hello\r\n[rank 0] 100%\r\x1b[K[rank 0] 100%\r\n[rank 0] end\r\n");
  EXPECT_EQ(run_cohort({"run", "printf", R"(\r50%%\r100%%)"}, {.in_terminal = true}).out, "\r50%\r100%");
}

TEST(RunOutput, MuchOutputArrivesComplete) {
  const auto outcome = run_cohort({"run", "sh", "-c", "head -c 20000000 /dev/zero"});
  EXPECT_EQ(outcome.out.size(), 20000000U);
}

TEST(RunOutput, ColoursAreForTerminals) {
  const auto script = run_script(2, "echo hello");
  EXPECT_THAT(run_cohort(script, {.in_terminal = true}).out, HasSubstr("\x1b["));
  EXPECT_THAT(run_cohort(script, {.variables = {{"NO_COLOR", "1"}}, .in_terminal = true}).out, Not(HasSubstr("\x1b[")));
  EXPECT_THAT(run_cohort(script).out, Not(HasSubstr("\x1b[")));
}

TEST(RunOutput, OnlyTheChosenRanksAreShown) {
  const auto outcome = run_cohort(run_script(4, "echo hello", {"--local-ranks-filter", "0,2"}));
  EXPECT_THAT(lines_of(outcome.out, ""), ElementsAre("[rank 0] hello", "[rank 2] hello"));
}

TEST(RunOutput, ALogFolderKeepsEverything) {
  const TemporaryFolder folder;
  const auto outcome = run_cohort(
      run_script(2, "echo out $RANK; echo err $RANK >&2", {"--log_dir", folder / "logs", "--rdzv-id", "job"}));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] out 1"));
  EXPECT_EQ(contents(folder / "logs/job/attempt_0/0/stdout.log"), "out 0\n");
  EXPECT_EQ(contents(folder / "logs/job/attempt_0/1/stdout.log"), "out 1\n");
  EXPECT_EQ(contents(folder / "logs/job/attempt_0/1/stderr.log"), "err 1\n");
}

TEST(RunOutput, ALogIsForItsUserAlone) {
  const TemporaryFolder folder;
  const auto log = folder / "logs/job/attempt_0/0/stdout.log";
  const Strings run = run_script(1, "echo secret", {"--log-dir", folder / "logs", "--rdzv-id", "job"});
  EXPECT_EQ(run_cohort(run).code, 0);
  using std::filesystem::perms;
  EXPECT_EQ(std::filesystem::status(log).permissions(), perms::owner_read | perms::owner_write);
  // A file from before, which others may read, is no longer theirs to read.
  std::filesystem::permissions(log, perms(0666));
  EXPECT_EQ(run_cohort(run).code, 0);
  EXPECT_EQ(std::filesystem::status(log).permissions(), perms::owner_read | perms::owner_write);
}

TEST(RunOutput, ALogIsNotWrittenThroughALinkNorOutsideOfItsFolder) {
  const TemporaryFolder folder;
  const auto victim = folder / "victim";
  std::ofstream(victim) << "precious";
  std::filesystem::create_directories(folder / "logs/job/attempt_0/0");
  std::filesystem::create_symlink(victim, folder / "logs/job/attempt_0/0/stdout.log");
  const auto outcome = run_cohort(run_script(1, "echo hello", {"--log-dir", folder / "logs", "--rdzv-id", "job"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("stdout.log: it is a symbolic link"));
  EXPECT_EQ(contents(victim), "precious");
  for (const auto* const id : {"../up", "a/b", "..", "."}) {
    const auto refused = run_cohort(run_script(1, "true", {"--log-dir", folder / "logs", "--rdzv-id", id}));
    EXPECT_EQ(refused.code, 2) << id;
    EXPECT_THAT(refused.err, HasSubstr("--rdzv-id")) << id;
  }
}

TEST(RunOutput, RedirectedStreamsAreNotShown) {
  const TemporaryFolder folder;
  const auto outcome =
      run_cohort(run_script(2, "echo out $RANK; echo err $RANK >&2",
                            {"--log-dir", folder / "logs", "--rdzv-id", "job", "-r", "0:3", "-t", "1:2"}));
  EXPECT_THAT(lines_of(outcome.out, ""), ElementsAre("[rank 1] out 1"));
  EXPECT_THAT(lines_of(outcome.err, ""), ElementsAre("[rank 1] err 1"));
  EXPECT_EQ(contents(folder / "logs/job/attempt_0/0/stdout.log"), "out 0\n");
  EXPECT_EQ(contents(folder / "logs/job/attempt_0/0/stderr.log"), "err 0\n");
  EXPECT_EQ(contents(folder / "logs/job/attempt_0/1/stderr.log"), "err 1\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "logs/job/attempt_0/1/stdout.log"));
}

TEST(RunOutput, EachAttemptHasItsOwnLog) {
  const TemporaryFolder folder;
  run_cohort(run_script(1, "echo attempt $TORCHELASTIC_RESTART_COUNT; exit 1",
                        {"--max-restarts", "1", "--log-dir", folder / "logs", "--rdzv-id", "job"}));
  EXPECT_EQ(contents(folder / "logs/job/attempt_0/0/stdout.log"), "attempt 0\n");
  EXPECT_EQ(contents(folder / "logs/job/attempt_1/0/stdout.log"), "attempt 1\n");
}

TEST(RunOutput, ALogThatCannotBeWrittenIsAnError) {
  const auto outcome = run_cohort(run_script(2, "true", {"--log-dir", "/proc/nowhere"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--log-dir: /proc/nowhere"));
  EXPECT_THAT(run_cohort(run_script(1, "true", {"-r", "3"})).err, HasSubstr("--redirects needs --log-dir"));
}

TEST(RunOutput, WithoutAReaderRanksEndAsInAPipeline) {
  Launched launched(run_script(2, "echo ready; exec yes"));
  launched.wait_for_output("ready");
  launched.close_output();
  const auto outcome = launched.finish();
  EXPECT_EQ(outcome.code, 128 + SIGPIPE);
  EXPECT_THAT(outcome.err, IsEmpty());
}

TEST(RunOutput, ABackgroundProcessThatHoldsTheOutputDoesNotHoldUpTheEnd) {
  const auto outcome = run_cohort(run_script(2, "sleep 60 & echo pid $!"));
  EXPECT_EQ(outcome.code, 0);
  for (const auto pid : numbers_after(outcome.out, "pid ")) EXPECT_TRUE(is_gone_soon(pid));
}

}  // namespace
