// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/torch/recorded_step.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "common/terminal_text.h"
#include "common/write_file.h"
#include "core/whole_file.h"
#include "measure/sizes.h"
#include "plan/cluster.h"
#include "plan/draw.h"
#include "plan/fit.h"
#include "plan/forecast.h"
#include "plan/report.h"
#include "plan/step_model.h"

namespace cohort::tool {

namespace {

using plan::Cluster;

struct PlanFlags {
  std::vector<std::string> files{};
  std::string cluster{};
  int ranks_per_host = 0;
  std::string intra{};
  std::string inter{};
  std::string algorithm{};
  double overlap = -1;
  int fit = 0;
  std::string backend = "shm";
  std::string save_cluster{};
  std::vector<int> worlds{};
  std::vector<std::string> buckets{};
  std::string grow{};
  std::string parts = "shrink";
  double compute_scale = 1;
  std::string plot{};
  std::string draw{};
  std::size_t fold = 60;
  bool json = false;
};

/// What a file describes, with flags in the place of its members; nullopt if nothing describes a cluster.
std::optional<Cluster> cluster_of(const PlanFlags& flags) {
  constexpr std::size_t longest_description = std::size_t{1} << 20U;
  std::optional<Cluster> cluster;
  if (!flags.cluster.empty()) {
    try {
      cluster = plan::read_cluster(read_whole_file(flags.cluster, longest_description));
    } catch (const ValueError& e) {
      throw ValueError(fmt::format("{}: {}", flags.cluster, e.message()));
    }
  }
  if (flags.fit > 0) {
    const auto algorithm = flags.algorithm.empty() ? plan::Algorithm::best : plan::parse_algorithm(flags.algorithm);
    const auto fit = plan::fit_here(flags.fit, flags.backend, algorithm);
    if (!flags.json) fmt::print("{}\n", plan::to_text(fit));
    cluster = fit.cluster;
  }
  if (!flags.intra.empty()) {
    if (!cluster) cluster.emplace();
    cluster->intra = plan::parse_link(flags.intra, "--intra");
  }
  if (!cluster) {
    if (!flags.inter.empty()) throw ValueError("--inter is given without --intra: ranks of one host need a link, too");
    return cluster;
  }
  if (!flags.inter.empty()) cluster->inter = plan::parse_link(flags.inter, "--inter");
  if (flags.ranks_per_host > 0) cluster->ranks_per_host = flags.ranks_per_host;
  if (!flags.algorithm.empty()) cluster->algorithm = plan::parse_algorithm(flags.algorithm);
  if (flags.overlap >= 0) cluster->overlap = flags.overlap;
  plan::check(*cluster);
  return cluster;
}

std::optional<std::size_t> group_named(const plan::StepModel& model, const std::string& name) {
  if (name.empty()) return std::nullopt;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model.groups.size(); ++i) {
    const auto& group = model.groups[i];
    if (group.id == name || group.label == name || group.label == "mesh_" + name) return i;
    names.push_back(group.name());
  }
  throw ValueError(fmt::format("--grow {}: the step has no such group, only {}", name, fmt::join(names, ", ")));
}

plan::ForecastOptions options_of(const PlanFlags& flags, const plan::StepModel& model) {
  plan::ForecastOptions options{.worlds = flags.worlds,
                                .growing = group_named(model, flags.grow),
                                .parts = flags.parts == "stay" ? plan::Parts::stay : plan::Parts::shrink,
                                .compute_scale = flags.compute_scale};
  if (options.worlds.empty() && flags.fit > 0) options.worlds = {flags.fit};
  for (const auto& each : flags.buckets) options.buckets.push_back(measure::parse_size(each));
  return options;
}

void print(const plan::PlannedStep& it, const std::optional<Cluster>& cluster, const plan::ForecastOptions& options) {
  auto text = fmt::format("{}: {}", it.file, plan::communication_table(it.step, it.model));
  if (!cluster) {
    text += "\nTo predict times, describe a cluster: --cluster FILE, or --intra and --inter, or --fit RANKS.\n";
  } else if (it.model.groups.empty()) {
    text += fmt::format("Computing takes {:.3f} ms on any number of ranks.\n",
                        it.forecasts.empty() ? 0 : it.forecasts.front().as_recorded.step * 1e3);
  } else {
    const auto& grows = it.model.groups[options.growing.value_or(plan::outermost_group(it.model))];
    text += fmt::format("\n{}\n{} grows with the number of ranks; each rank computes as much as in the recording\n",
                        plan::describe(*cluster), grows.name());
    text += plan::forecast_table(it.model, it.forecasts);
  }
  fmt::print("{}\n", shown_on(STDOUT_FILENO, text));
}

void run(const PlanFlags& flags) {
  if (flags.files.empty() && flags.fit == 0) {
    throw ValueError("nothing to plan: name the file of a recorded step (cohort::save_step), or --fit RANKS");
  }
  if (flags.files.size() != 1 && !(flags.plot.empty() && flags.draw.empty())) {
    throw ValueError("--plot and --draw take one recorded step");
  }
  std::vector<plan::PlannedStep> steps;
  for (const auto& file : flags.files) {
    plan::PlannedStep it{.file = file, .step = load_step(file), .model = {}, .forecasts = {}};
    it.model = plan::model_of(it.step);
    steps.push_back(std::move(it));
  }
  if (!flags.draw.empty()) plan::draw_graph(steps.front().step.graph, {.fold_above = flags.fold}, flags.draw);
  const auto cluster = cluster_of(flags);
  if (!cluster && !flags.plot.empty()) throw ValueError("--plot: describe a cluster (--cluster, --intra or --fit)");
  if (cluster && !flags.save_cluster.empty()) write_file(flags.save_cluster, plan::to_json(*cluster));
  for (auto& it : steps) {
    const auto options = options_of(flags, it.model);
    if (cluster) it.forecasts = plan::forecast(it.model, *cluster, options);
    if (!flags.json) print(it, cluster, options);
  }
  if (flags.json) fmt::print("{}", plan::to_json(steps));
  if (!flags.plot.empty()) write_file(flags.plot, plan::forecast_picture("step", steps.front().forecasts));
}

constexpr auto footer =
    R"(A step is recorded by cohort::capture and saved with cohort::save_step, on any number of ranks of a real group or of
`fake`, which needs none. Its collectives and their bytes are exact. Times are predicted: computing takes what replays
took that were measured on this machine, a message of n bytes alpha + n / bandwidth, and a collective what the
algorithms of MPI libraries and NCCL need. docs/plan.md says what is assumed, and how far off that is.

Examples:
  cohort plan ddp.step                                   bytes of each group and operation
  cohort plan ddp.step --intra 4:200 --inter 12:50 --ranks-per-host 8 --world 8,64,512
  cohort plan ddp.step --cluster h100.json --plot step.svg
  cohort plan ddp.step --fit 2                           on this machine
  cohort plan --fit 8 --save-cluster here.json
  cohort plan ddp.step --draw graph.svg                  the graph; needs Graphviz)";

}  // namespace

void add_plan_command(CLI::App& app) {
  auto* const command = app.add_subcommand("plan", "Predict what a recorded training step takes on a cluster");
  const auto flags = std::make_shared<PlanFlags>();
  command->add_option("FILE", flags->files, "recorded steps");

  const auto* const where = "The cluster";
  command->add_option("--cluster", flags->cluster, "its description")->type_name("FILE.json")->group(where);
  command->add_option("--ranks-per-host", flags->ranks_per_host, "default: all ranks on one host")
      ->check(CLI::Range(1, 1'000'000))
      ->group(where);
  command->add_option("--intra", flags->intra, "inside a host: latency in us, and GB/s")
      ->type_name("US:GBPS")
      ->group(where);
  command->add_option("--inter", flags->inter, "between hosts: the link that the ranks of a host share")
      ->type_name("US:GBPS")
      ->group(where);
  command->add_option("--algorithm", flags->algorithm, "best, ring or tree; default: best")
      ->check(CLI::IsMember({"best", "ring", "tree"}))
      ->group(where);
  command
      ->add_option("--overlap", flags->overlap,
                   "how fast a rank computes while it communicates, from 0 to 1; default: 1")
      ->check(CLI::Range(0.0, 1.0))
      ->group(where);
  command->add_option("--fit", flags->fit, "measure this machine with so many ranks")
      ->check(CLI::Range(2, 4096))
      ->type_name("RANKS")
      ->group(where);
  command->add_option("--backend", flags->backend, "with --fit: the backend")->capture_default_str()->group(where);
  command->add_option("--save-cluster", flags->save_cluster, "write the description")
      ->type_name("OUT.json")
      ->group(where);

  const auto* const what = "What is predicted";
  command->add_option("--world", flags->worlds, "numbers of ranks; default: that of the recording, and its doubles")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1 << 24))
      ->group(what);
  command->add_option("--buckets", flags->buckets, "bucket sizes for DDP's gradients, such as 1M,25M")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(what);
  command->add_option("--grow", flags->grow, "the group or mesh dimension that grows; default: the outermost")
      ->type_name("GROUP")
      ->group(what);
  command
      ->add_option("--parts", flags->parts,
                   "when a group grows, the parts that its ranks gather or scatter shrink (shards) or stay")
      ->check(CLI::IsMember({"shrink", "stay"}))
      ->capture_default_str()
      ->group(what);
  command->add_option("--compute-scale", flags->compute_scale, "computing takes so many times what it took here")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(what);

  const auto* const out = "Results";
  command->add_flag("--json", flags->json, "print JSON instead of text")->group(out);
  command->add_option("--plot", flags->plot, "draw step times over ranks and bucket sizes")
      ->type_name("OUT.svg")
      ->group(out);
  command->add_option("--draw", flags->draw, "draw the graph: .svg, .png, .pdf or .dot")->type_name("OUT")->group(out);
  command
      ->add_option("--fold", flags->fold,
                   "with --draw: graphs with more nodes are drawn with operators between collectives as one box")
      ->capture_default_str()
      ->group(out);
  command->footer(footer);
  command->callback([flags] { run(*flags); });
}

}  // namespace cohort::tool
