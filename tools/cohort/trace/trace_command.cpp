// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/torch/recorded_step.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/Error.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.h"
#include "common/terminal_text.h"
#include "common/write_file.h"
#include "core/whole_file.h"
#include "trace/analysis.h"
#include "trace/chrome_trace.h"
#include "trace/reader.h"
#include "trace/step_times.h"

namespace cohort::tool {

namespace {

using nlohmann::json;
using trace::TraceDump;
using trace::TraceEntry;
using trace::TraceReport;

struct TraceFlags {
  std::vector<std::string> files{};
  std::string group{};
  std::string chrome{};
  bool json = false;
  bool list = false;
};

/// The dumps in a folder; other files in it are left out.
std::vector<TraceDump> read_folder(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  std::vector<TraceDump> dumps;
  for (const auto& file : files) {
    try {
      dumps.push_back(trace::read_trace_file(file));
    } catch (const Error& e) {
      fmt::print(stderr, "cohort: {} (left out)\n", shown_on(STDERR_FILENO, e.message()));
    }
  }
  return dumps;
}

std::vector<TraceDump> read_all(const std::vector<std::string>& files) {
  std::vector<TraceDump> dumps;
  for (const auto& file : files) {
    if (std::filesystem::is_directory(file)) {
      auto found = read_folder(file);
      std::move(found.begin(), found.end(), std::back_inserter(dumps));
    } else {
      dumps.push_back(trace::read_trace_file(file));
    }
  }
  if (dumps.empty()) throw ValueError(fmt::format("no dumps in {}", fmt::join(files, ", ")));
  std::stable_sort(dumps.begin(), dumps.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return dumps;
}

void print_tables(const TraceReport& report) {
  for (const auto& group : report.groups) {
    const auto& description = group.group.description;
    fmt::print("\ngroup {}{}\n", group.group.name, description.empty() ? "" : fmt::format(" ({})", description));
    fmt::print("{:>6}  {:<28}  {}\n", "rank", "last completed", "in flight");
    for (const auto& member : group.members) {
      const auto last = !member.has_dump ? std::string("no dump")
                        : member.last_completed < 0
                            ? std::string("-")
                            : fmt::format("#{} {}", member.last_completed, member.last_completed_op);
      const auto now =
          member.in_flight.empty() ? std::string("-") : fmt::format("{}", fmt::join(member.in_flight, "; "));
      fmt::print("{:>6}  {:<28}  {}\n", member.rank, last, now);
    }
  }
}

void print_list(const std::vector<TraceDump>& dumps, const TraceReport& report) {
  std::vector<std::pair<const TraceEntry*, std::string>> entries;
  for (const auto& dump : dumps) {
    for (const auto& entry : dump.entries) {
      const auto group = std::find_if(report.groups.begin(), report.groups.end(),
                                      [&entry](const auto& g) { return g.group.id == entry.group; });
      if (group != report.groups.end()) entries.emplace_back(&entry, group->group.name);
    }
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first->created_ns < b.first->created_ns; });
  const auto first = entries.empty() ? 0 : entries.front().first->created_ns;
  fmt::print("\n{:>12}  {:>5}  {:<16}  {:>6}  {:<10}  {:>12}  {}\n", "ms", "rank", "group", "#", "state", "took ms",
             "call");
  for (const auto& [entry, group] : entries) {
    const auto from = entry->started_ns != 0 ? entry->started_ns : entry->created_ns;
    const auto took = entry->completed_ns == 0
                          ? std::string("-")
                          : fmt::format("{:.3f}", static_cast<double>(entry->completed_ns - from) / 1e6);
    fmt::print("{:>12.3f}  {:>5}  {:<16}  {:>6}  {:<10}  {:>12}  {}\n",
               static_cast<double>(entry->created_ns - first) / 1e6, entry->rank, group, entry->sequence(),
               trace::to_string(entry->state), took, trace::describe(*entry));
  }
}

json to_json(const TraceReport& report) {
  auto findings = json::array();
  for (const auto& finding : report.findings) {
    findings.push_back({{"kind", trace::to_string(finding.kind)},
                        {"group", finding.group},
                        {"sequence", finding.sequence},
                        {"ranks", finding.ranks},
                        {"sentence", finding.sentence}});
  }
  auto groups = json::array();
  for (const auto& group : report.groups) {
    auto members = json::array();
    for (const auto& member : group.members) {
      members.push_back({{"rank", member.rank},
                         {"has_dump", member.has_dump},
                         {"last_completed", member.last_completed},
                         {"last_completed_op", member.last_completed_op},
                         {"in_flight", member.in_flight}});
    }
    groups.push_back({{"id", group.group.id},
                      {"name", group.group.name},
                      {"description", group.group.description},
                      {"members", std::move(members)}});
  }
  return {{"summary", report.summary},
          {"is_fine", report.is_fine},
          {"findings", std::move(findings)},
          {"missing_ranks", report.missing_ranks},
          {"groups", std::move(groups)}};
}

/// Whether the file is no dump but a recorded step, with the timeline of its replays.
bool has_step(const std::string& file) {
  std::error_code ignored;  // whoever reads the file next says what is wrong with it
  return !std::filesystem::is_directory(file, ignored) && is_step(read_whole_file(file, trace::longest_dump));
}

void report_steps(const TraceFlags& flags) {
  if (flags.files.size() > 1 && (flags.json || !flags.chrome.empty())) {
    throw ValueError(fmt::format("{} takes one recorded step", flags.json ? "--json" : "--chrome"));
  }
  if (!flags.group.empty()) throw ValueError("--group is for dumps; a recorded step has few groups, and all are shown");
  for (const auto& file : flags.files) {
    const auto step = load_step(file);
    if (step.timeline.replays.empty()) {
      throw ValueError(fmt::format(
          "{} has a graph but no timeline: call measure() on the captured step before it is replayed and saved", file));
    }
    if (!flags.chrome.empty()) write_file(flags.chrome, trace::step_chrome_trace(step));
    constexpr std::size_t usual_list = 10;
    const auto longest_list = flags.list ? step.graph.nodes.size() : usual_list;
    const auto text = flags.json ? trace::step_json(step) : file + ": " + trace::step_report(step, longest_list);
    fmt::print("{}\n", shown_on(STDOUT_FILENO, text));
  }
}

void run(const TraceFlags& flags) {
  if (has_step(flags.files.front())) return report_steps(flags);
  const auto dumps = read_all(flags.files);
  const auto report = trace::analyse(dumps, flags.group);
  if (!flags.chrome.empty()) write_file(flags.chrome, trace::chrome_trace(dumps));
  if (flags.json) {
    fmt::print("{}\n", to_json(report).dump(2));
  } else {
    fmt::print("{}\n", report.summary);
    for (std::size_t i = 1; i < report.findings.size(); ++i) fmt::print("also: {}\n", report.findings[i].sentence);
    for (const auto& dump : dumps) {
      if (!dump.reason.empty()) fmt::print("rank {} dumped because: {}\n", dump.rank, dump.reason);
    }
    print_tables(report);
    if (flags.list) print_list(dumps, report);
  }
  if (!report.is_fine) throw CLI::RuntimeError(1);
}

}  // namespace

void add_trace_command(CLI::App& app) {
  auto* const command =
      app.add_subcommand("trace",
                         "Report what went wrong, from what the flight recorders of all ranks wrote, or where the time "
                         "of a recorded training step goes");
  const auto flags = std::make_shared<TraceFlags>();
  command
      ->add_option("FILE", flags->files,
                   "dumps, JSON or CBOR, one for each rank; for a folder, all dumps in it; or a recorded step")
      ->required();
  command->add_flag("--json", flags->json, "print JSON instead of text");
  command
      ->add_option("--chrome", flags->chrome,
                   "also write a timeline for ui.perfetto.dev or chrome://tracing to this file")
      ->type_name("OUT.json");
  command->add_option("--group", flags->group, "only this group, by name or id")->type_name("G");
  command->add_flag("--list", flags->list,
                    "also list every operation in the order of time; of a step, all operators and nodes");
  command->footer(
      "Prints one sentence that says what went wrong, then for each group and rank the last collective that completed\n"
      "and what is in flight. Ranks are global ranks; #17 is the 17th collective of its group, and point-to-point\n"
      "operations are counted separately. Returns 0 if everything that was started has finished, otherwise 1.\n"
      "\n"
      "A captured step that was measured and saved (cohort::save_step) has a timeline: how long it computes, "
      "communicates\n"
      "and waits, and which operators, nodes and collectives take most of it.\n"
      "\n"
      "Examples:\n"
      "  COHORT_TRACE_FILE=/tmp/trace_ COHORT_TRACE_SIGNAL=USR2 cohort run -n 4 ./train\n"
      "  pkill -USR2 train                       each rank writes /tmp/trace_RANK; a timeout does it without a signal\n"
      "  cohort trace /tmp/trace_*               what hangs, and who is to blame\n"
      "  cohort trace /tmp/trace_* --list        everything the ranks remember\n"
      "  cohort trace dumps/ --chrome t.json     a timeline; open it at ui.perfetto.dev\n"
      "  cohort trace ddp.step                   where the time of a recorded step goes");
  command->callback([flags] { run(*flags); });
}

}  // namespace cohort::tool
