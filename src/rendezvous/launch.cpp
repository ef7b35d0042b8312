// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/launch.h>

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>

#include "core/log_format.h"
#include "core/parse.h"
#include "rendezvous/slurm.h"

namespace cohort {

std::string_view to_string(Launcher launcher) {
  static constexpr std::array<std::string_view, 6> names = {"by hand",  "cohort run", "torchrun",
                                                            "Open MPI", "PMI",        "SLURM"};
  return names.at(static_cast<std::size_t>(launcher));
}

namespace {

/// Reads variables into a Launch and remembers where each field came from.
class Finder {
 public:
  Finder(const Env& env, Launcher launcher) : env_(env) { launch_.launcher = launcher; }

  std::optional<int> take(std::string_view field, std::initializer_list<std::string_view> variables) {
    for (const auto variable : variables) {
      if (const auto value = env_.integer(variable)) {
        found(field, variable);
        return value;
      }
    }
    return std::nullopt;
  }
  int need(std::string_view field, std::initializer_list<std::string_view> variables, std::string_view because) {
    const auto value = take(field, variables);
    if (!value) throw ValueError(fmt::format("{} is set, but {} is missing or empty", because, *variables.begin()));
    return *value;
  }
  void found(std::string_view field, std::string_view variable) { launch_.found_in.emplace(field, variable); }

  /// Adds what does not depend on the launcher, and checks what does.
  Launch finish() {
    if (const auto address = env_.text("MASTER_ADDR"); !address.empty()) {
      launch_.master_addr = address;
      found("master_addr", "MASTER_ADDR");
    }
    if (const auto text = env_.text("MASTER_PORT"); !text.empty()) {
      launch_.master_port = parse_integer<std::uint16_t>(text);
      if (!launch_.master_port) {
        throw ValueError(fmt::format("MASTER_PORT=\"{}\": a port is a number from 0 to 65535", text));
      }
      found("master_port", "MASTER_PORT");
    }
    launch_.restart_count = take("restart_count", {"TORCHELASTIC_RESTART_COUNT"}).value_or(0);
    launch_.replacement = take("replacement", {"COHORT_REPLACEMENT"}).value_or(0);
    if (launch_.size < 1) {
      throw ValueError(fmt::format("{}={}: there is at least one process", launch_.found_in["size"], launch_.size));
    }
    if (launch_.rank < 0 || launch_.rank >= launch_.size) {
      throw ValueError(fmt::format("{}={} with {}={}: a rank is from 0 to size - 1", launch_.found_in["rank"],
                                   launch_.rank, launch_.found_in["size"], launch_.size));
    }
    if (launch_.local_size && *launch_.local_size > launch_.size) {
      throw ValueError(fmt::format("{}={} is more than {}={}", launch_.found_in["local_size"], *launch_.local_size,
                                   launch_.found_in["size"], launch_.size));
    }
    return std::move(launch_);
  }

  Launch& launch() { return launch_; }

 private:
  const Env& env_;
  Launch launch_;
};

/// In a pod RANK and WORLD_SIZE may count pods, and then nothing distinguishes the processes of one pod.
void refuse_uncounted_pod(const Env& env) {
  if (env.text("KUBERNETES_PORT").empty() || !env.text("LOCAL_RANK").empty()) return;
  for (const auto* const variable : {"PET_NPROC_PER_NODE", "NPROC_PER_NODE"}) {
    const auto text = env.text(variable);
    if (text.empty() || text == "1") continue;
    throw ValueError(
        fmt::format("this is a Kubernetes pod with {}={} and no LOCAL_RANK: RANK={} counts pods, not "
                    "processes; start the program with \"cohort run\" in the pod, which gives each process "
                    "its rank",
                    variable, text, env.text("RANK")));
  }
}

Launch from_torchrun(const Env& env) {
  refuse_uncounted_pod(env);
  const bool ours = !env.store.empty();
  const bool theirs = !env.text("TORCHELASTIC_RUN_ID").empty();
  Finder find(env, ours ? Launcher::cohort : theirs ? Launcher::torchrun : Launcher::by_hand);
  auto& launch = find.launch();
  launch.rank = find.need("rank", {"RANK"}, "WORLD_SIZE");
  launch.size = find.need("size", {"WORLD_SIZE"}, "RANK");
  launch.local_rank = find.take("local_rank", {"LOCAL_RANK"});
  launch.local_size = find.take("local_size", {"LOCAL_WORLD_SIZE"});
  launch.node = find.take("node", {"GROUP_RANK", "PET_NODE_RANK"});
  launch.job = ours ? std::string(env.run_id) : std::string(env.text("TORCHELASTIC_RUN_ID"));
  return find.finish();
}

Launch from_open_mpi(const Env& env) {
  Finder find(env, Launcher::open_mpi);
  auto& launch = find.launch();
  launch.rank = find.need("rank", {"OMPI_COMM_WORLD_RANK"}, "OMPI_COMM_WORLD_SIZE");
  launch.size = find.need("size", {"OMPI_COMM_WORLD_SIZE"}, "OMPI_COMM_WORLD_RANK");
  launch.local_rank = find.take("local_rank", {"OMPI_COMM_WORLD_LOCAL_RANK"});
  launch.local_size = find.take("local_size", {"OMPI_COMM_WORLD_LOCAL_SIZE"});
  launch.job = env.text("PMIX_NAMESPACE");
  return find.finish();
}

/// MPICH's process manager does not name the job. But all processes of a job on a host share the manager at the other
/// end of PMI_FD, even through wrapper scripts, so its process id serves as a name.
std::string pmi_job(const Env& env) {
  if (const auto name = env.text("PMIX_NAMESPACE"); !name.empty()) return std::string(name);
  ucred manager{};
  socklen_t size = sizeof(manager);
  const auto fd = env.integer("PMI_FD");
  if (!fd || ::getsockopt(*fd, SOL_SOCKET, SO_PEERCRED, &manager, &size) != 0 || manager.pid == 0) return {};
  return fmt::format("pmi-{}", manager.pid);
}

Launch from_pmi(const Env& env) {
  Finder find(env, Launcher::pmi);
  auto& launch = find.launch();
  launch.rank = find.need("rank", {"PMI_RANK", "PALS_RANKID", "PMI_ID"}, "PMI_SIZE");
  launch.size = find.need("size", {"PMI_SIZE"}, "PMI_RANK");
  launch.local_rank = find.take("local_rank", {"MPI_LOCALRANKID"});
  launch.local_size = find.take("local_size", {"MPI_LOCALNRANKS"});
  launch.job = pmi_job(env);
  return find.finish();
}

/// SLURM's variables count only inside a step: a batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS although it
/// is a single process.
bool is_slurm_step(const Env& env) {
  return !env.text("SLURM_PROCID").empty() && !env.text("SLURM_STEP_ID").empty();
}

Launch from_slurm(const Env& env) {
  Finder find(env, Launcher::slurm);
  auto& launch = find.launch();
  launch.rank = find.need("rank", {"SLURM_PROCID"}, "SLURM_STEP_ID");
  launch.size = find.need("size", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, "SLURM_PROCID");
  launch.local_rank = find.take("local_rank", {"SLURM_LOCALID"});
  launch.node = find.take("node", {"SLURM_NODEID"});
  if (const auto tasks = env.text("SLURM_STEP_TASKS_PER_NODE"); !tasks.empty()) {
    launch.local_size = slurm_tasks_on_node(tasks, launch.node.value_or(0));
    find.found("local_size", "SLURM_STEP_TASKS_PER_NODE");
  } else {
    launch.local_size = find.take("local_size", {"SLURM_NTASKS_PER_NODE"});
  }
  launch.job = fmt::format("slurm-{}.{}", env.text("SLURM_JOB_ID"), env.text("SLURM_STEP_ID"));
  auto complete = find.finish();
  for (const auto* const variable : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (!complete.master_addr.empty() || env.text(variable).empty()) continue;
    complete.master_addr = first_slurm_host(env.text(variable));
    complete.found_in.emplace("master_addr", variable);
  }
  return complete;
}

}  // namespace

std::optional<Launch> find_launch(const Env& env) {
  const auto is_set = [&env](std::string_view name) { return !env.text(name).empty(); };
  const bool has_mpi = is_set("OMPI_COMM_WORLD_RANK") || is_set("OMPI_COMM_WORLD_SIZE");
  if (is_set("RANK") || is_set("WORLD_SIZE")) {
    auto launch = from_torchrun(env);
    // With one launcher inside another, the inner one's variables stand beside the inherited ones of the outer one.
    if (has_mpi && env.text("OMPI_COMM_WORLD_RANK") != env.text("RANK")) {
      log_warn(
          "RANK={} and OMPI_COMM_WORLD_RANK={} are both set and differ; RANK is used: unset it if it was inherited",
          env.text("RANK"), env.text("OMPI_COMM_WORLD_RANK"));
    }
    return launch;
  }
  if (has_mpi) return from_open_mpi(env);
  const bool has_pmi = is_set("PMI_RANK") || is_set("PMI_SIZE") || is_set("PALS_RANKID");
  // srun sets PMI_* too, but its own variables say more about the step. Hydra starts its proxies through srun as well;
  // it is recognised by MPI_LOCALNRANKS, and there SLURM_PROCID is the number of the proxy, not of this process.
  const bool has_hydra = is_set("MPI_LOCALNRANKS");
  if (is_slurm_step(env) && !(has_pmi && has_hydra)) return from_slurm(env);
  if (has_pmi) return from_pmi(env);
  return std::nullopt;
}

}  // namespace cohort
