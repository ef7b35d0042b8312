// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/env.h>
#include <cohort/error.h>

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/parse.h"

namespace cohort {

namespace {

constexpr auto known_variables = std::to_array<EnvVariable>({
    {"COHORT_LOG", "log level: trace, debug, info, warn (default), error, off"},
    {"COHORT_DEBUG", "how much groups check each other: off (default), info, detail"},
    {"TORCH_DISTRIBUTED_DEBUG", "the same, where COHORT_DEBUG is not set"},
    {"COHORT_STORE", "where the job's store is, when a launcher owns it: unix:@name or tcp://host:port"},
    {"COHORT_STORE_PORT", "TCP port of the store under a foreign launcher on several hosts"},
    {"COHORT_SECRET_FILE", "file with the job's secret (see cohort secret)"},
    {"COHORT_INSECURE", "1: run on several hosts without a secret"},
    {"COHORT_RUN_ID", "name of the job"},
    {"COHORT_REPLACEMENT",
     "cohort run --keep-going: how many processes have had this rank before; not set for the first"},
    {"COHORT_MODULE_PATH", "folders to look for engines in first, separated by colons"},
    {"COHORT_HOST_ID", "names this host, for ranks that are not to share memory with others of the same machine"},
    {"COHORT_ENGINE", "what joins hosts in backends hybrid and auto: gloo (default) or mpi"},
    {"COHORT_MPI", "which MPI backend mpi speaks where the environment does not tell: openmpi or mpich"},
    {"GLOO_SOCKET_IFNAME", "network interface that backend gloo uses; of several, the first that is up"},
    {"GLOO_DEVICE_TRANSPORT", "what backend gloo talks over: TCP is all there is"},
    {"DDP_SET_LAST_BUCKET_CAP", "1: the small first bucket of DistributedDataParallel is the last one instead"},
    {"DDP_DISABLE_COMM_MEM", "1: buckets of gradients do not lie in memory of the group"},
    {"NCCL_SOCKET_IFNAME", "NCCL's own, shown in logs: network interface"},
    {"NCCL_BLOCKING_WAIT", "PyTorch's, shown in logs"},
    {"NCCL_ASYNC_ERROR_HANDLING", "PyTorch's, shown in logs"},
    {"NCCL_DEBUG", "NCCL's own, shown in logs: how much it says"},
    {"NCCL_NTHREADS", "NCCL's own, shown in logs"},
    {"NCCL_IB_TIMEOUT", "NCCL's own, shown in logs"},
    {"COHORT_TLS_CA", "PEM file with the certificate authority for TLS"},
    {"COHORT_TLS_CERT", "PEM file with this process's certificate"},
    {"COHORT_TLS_KEY", "PEM file with this process's private key"},
    {"COHORT_TLS_NAME", "name the store's certificate must carry"},
    {"COHORT_TRACE_BUFFER_SIZE", "operations the flight recorder keeps: default 2000; 0: none"},
    {"COHORT_TRACE_FILE", "where the flight recorder's dumps go; the rank is added"},
    {"COHORT_TRACE_SIGNAL", "signal that makes the flight recorder dump: a name (USR2) or number"},
    {"COHORT_TRACE_STACKS", "1: the flight recorder keeps who called each operation"},
    {"TORCH_FR_BUFFER_SIZE", "PyTorch's name for COHORT_TRACE_BUFFER_SIZE"},
    {"TORCH_NCCL_TRACE_BUFFER_SIZE", "PyTorch's older name for COHORT_TRACE_BUFFER_SIZE"},
    {"TORCH_FR_DUMP_TEMP_FILE", "PyTorch's name for COHORT_TRACE_FILE"},
    {"RANK", "torchrun, cohort run: rank of this process; on Kubernetes possibly the node's index"},
    {"WORLD_SIZE", "torchrun, cohort run: number of processes; on Kubernetes possibly of nodes"},
    {"LOCAL_RANK", "torchrun, cohort run: rank on this host"},
    {"LOCAL_WORLD_SIZE", "torchrun, cohort run: processes on this host"},
    {"GROUP_RANK", "torchrun, cohort run: index of this host"},
    {"MASTER_ADDR", "host of rank 0"},
    {"MASTER_PORT", "port at MASTER_ADDR"},
    {"TORCHELASTIC_RUN_ID", "torchrun: name of the job"},
    {"TORCHELASTIC_RESTART_COUNT", "torchrun, cohort run: how often the job was restarted"},
    {"OMPI_COMM_WORLD_RANK", "Open MPI: rank"},
    {"OMPI_COMM_WORLD_SIZE", "Open MPI: number of processes"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI: rank on this host"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI: processes on this host"},
    {"PMIX_NAMESPACE", "PMIx: name of the job"},
    {"PMI_RANK", "MPICH and other PMI launchers: rank"},
    {"PMI_SIZE", "MPICH and other PMI launchers: number of processes"},
    {"PMI_ID", "older PMI launchers: rank"},
    {"PMI_FD", "MPICH: connection to its process manager, which names the job on a host"},
    {"PALS_RANKID", "Cray PALS: rank (the size comes from PMI_SIZE)"},
    {"MPI_LOCALRANKID", "Hydra: rank on this host"},
    {"MPI_LOCALNRANKS", "Hydra: processes on this host"},
    {"SLURM_PROCID", "SLURM: rank"},
    {"SLURM_NTASKS", "SLURM: number of tasks of the job"},
    {"SLURM_STEP_NUM_TASKS", "SLURM: number of tasks of the step"},
    {"SLURM_LOCALID", "SLURM: rank on this host"},
    {"SLURM_NODEID", "SLURM: index of this host"},
    {"SLURM_NTASKS_PER_NODE", "SLURM: tasks per host as asked for"},
    {"SLURM_STEP_TASKS_PER_NODE", "SLURM: tasks on each host of the step, as in 2(x3),1"},
    {"SLURM_STEP_NODELIST", "SLURM: hosts of the step"},
    {"SLURM_JOB_NODELIST", "SLURM: hosts of the job"},
    {"SLURM_JOB_ID", "SLURM: job"},
    {"SLURM_STEP_ID", "SLURM: step; set by srun, not in a batch script"},
    {"SLURM_MPI_TYPE", "SLURM: how it starts MPI programs: pmix (Open MPI) or pmi2 (MPICH)"},
    {"KUBERNETES_PORT", "Kubernetes: this is a pod"},
    {"NPROC_PER_NODE", "Kubernetes jobs: processes per pod"},
    {"PET_NPROC_PER_NODE", "Kubernetes PyTorchJob: processes per pod"},
    {"PET_NNODES", "Kubernetes PyTorchJob: number of pods"},
    {"PET_NODE_RANK", "Kubernetes PyTorchJob: index of this pod"},
    {"PET_MASTER_ADDR", "cohort run: default for --master-addr"},
    {"PET_MASTER_PORT", "cohort run: default for --master-port"},
    {"PET_RDZV_ENDPOINT", "cohort run: default for --rdzv-endpoint"},
    {"PET_RDZV_BACKEND", "cohort run: default for --rdzv-backend"},
    {"PET_RDZV_ID", "cohort run: default for --rdzv-id"},
    {"PET_RDZV_CONF", "cohort run: default for --rdzv-conf"},
    {"PET_STANDALONE", "cohort run: 1 stands for --standalone"},
    {"PET_MAX_RESTARTS", "cohort run: default for --max-restarts"},
    {"PET_MONITOR_INTERVAL", "cohort run: default for --monitor-interval"},
    {"PET_ROLE", "cohort run: default for --role"},
    {"PET_NO_PYTHON", "cohort run: 1 stands for --no-python"},
    {"PET_LOG_DIR", "cohort run: default for --log-dir"},
    {"PET_REDIRECTS", "cohort run: default for --redirects"},
    {"PET_TEE", "cohort run: default for --tee"},
    {"PET_LOCAL_RANKS_FILTER", "cohort run: default for --local-ranks-filter"},
    {"PET_LOCAL_ADDR", "cohort run: default for --local-addr"},
    {"CUDA_VISIBLE_DEVICES", "the GPUs this process may use"},
    {"HWLOC_PLUGINS_PATH", "hwloc's: where cohort looks for its plugins; nowhere unless it is set"},
    {"OMP_NUM_THREADS", "OpenMP threads; cohort run sets it to the rank's share of CPUs unless it is set"},
    {"NO_COLOR", "cohort: no coloured output"},
});

std::optional<std::uint16_t> port_of(std::string_view name, std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto port = parse_integer<std::uint16_t>(text);
  if (!port) throw ValueError(fmt::format("{}=\"{}\": a port is a number from 0 to 65535", name, text));
  return port;
}

bool truth_of(std::string_view name, std::string_view text) {
  if (text.empty()) return false;
  const auto value = parse_bool(text);
  if (!value) throw ValueError(fmt::format("{}=\"{}\": neither true (1) nor false (0)", name, text));
  return *value;
}

/// This many records fit into memory anywhere; a larger number is likely a mistake.
constexpr std::size_t longest_trace = std::size_t{1} << 24U;

std::size_t trace_size_of(const Env& env, std::size_t otherwise) {
  for (const auto* const name : {"COHORT_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
    const auto text = env.text(name);
    if (text.empty()) continue;
    const auto size = parse_integer<std::size_t>(text);
    if (!size || *size > longest_trace) {
      throw ValueError(fmt::format("{}=\"{}\": a number of operations from 0 to {}", name, text, longest_trace));
    }
    return *size;
  }
  return otherwise;
}

/// Accepts "USR2", "SIGUSR2" or "12", but not the signals that cannot be caught or that report a fault of the program.
int signal_of(std::string_view name, std::string_view text) {
  if (text.empty()) return 0;
  const auto wanted = text.starts_with("SIG") ? text.substr(3) : text;
  for (int number = 1; number < NSIG; ++number) {
    const auto* const known = ::sigabbrev_np(number);
    if ((known == nullptr || wanted != known) && parse_integer<int>(wanted) != number) continue;
    switch (number) {
      case SIGKILL:
      case SIGSTOP:
      case SIGSEGV:
      case SIGBUS:
      case SIGILL:
      case SIGFPE:
      case SIGABRT:
        break;
      default:
        return number;
    }
  }
  throw ValueError(fmt::format("{}=\"{}\": a signal such as USR2, or its number", name, text));
}

}  // namespace

std::span<const EnvVariable> Env::known() {
  return known_variables;
}

std::string Env::read_one(std::string_view name) {
  for (const auto& variable : known_variables) {
    if (variable.name != name) continue;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the one place that reads the environment
    const char* const value = std::getenv(std::string(name).c_str());
    return value == nullptr ? "" : value;
  }
  throw AssertionError(fmt::format("{} is not among the variables that are read: list it first", name));
}

Env Env::read() {
  std::map<std::string, std::string, std::less<>> variables;
  for (const auto& variable : known_variables) {
    const std::string name(variable.name);
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the one place that reads the environment
    if (const char* const value = std::getenv(name.c_str())) variables.emplace(name, value);
  }
  return from(std::move(variables));
}

Env Env::from(std::map<std::string, std::string, std::less<>> variables) {
  Env env;
  env.text_ = std::move(variables);
  if (const auto level = env.text("COHORT_LOG"); !level.empty()) {
    try {
      env.log_level = parse_log_level(level);
    } catch (const ValueError& e) {
      throw ValueError(fmt::format("COHORT_LOG: {}", e.message()));
    }
  }
  env.insecure = truth_of("COHORT_INSECURE", env.text("COHORT_INSECURE"));
  env.store = env.text("COHORT_STORE");
  env.store_port = port_of("COHORT_STORE_PORT", env.text("COHORT_STORE_PORT"));
  env.secret_file = env.text("COHORT_SECRET_FILE");
  env.run_id = env.text("COHORT_RUN_ID");
  env.tls_ca = env.text("COHORT_TLS_CA");
  env.tls_cert = env.text("COHORT_TLS_CERT");
  env.tls_key = env.text("COHORT_TLS_KEY");
  env.tls_name = env.text("COHORT_TLS_NAME");
  env.trace_buffer_size = trace_size_of(env, env.trace_buffer_size);
  env.trace_file = env.text(env.text("COHORT_TRACE_FILE").empty() ? "TORCH_FR_DUMP_TEMP_FILE" : "COHORT_TRACE_FILE");
  env.trace_signal = signal_of("COHORT_TRACE_SIGNAL", env.text("COHORT_TRACE_SIGNAL"));
  env.trace_stacks = truth_of("COHORT_TRACE_STACKS", env.text("COHORT_TRACE_STACKS"));
  return env;
}

std::string_view Env::text(std::string_view name) const {
  const bool listed = std::any_of(known_variables.begin(), known_variables.end(),
                                  [name](const EnvVariable& variable) { return variable.name == name; });
  if (!listed) throw AssertionError(fmt::format("the variable {} is not listed in env.cpp", name));
  const auto it = text_.find(name);
  return it == text_.end() ? std::string_view() : std::string_view(it->second);
}

Env Env::with(std::string_view name, std::string value) const {
  auto variables = text_;
  variables.insert_or_assign(std::string(name), std::move(value));
  return from(std::move(variables));
}

std::optional<int> Env::integer(std::string_view name) const {
  const auto value = text(name);
  if (value.empty()) return std::nullopt;
  const auto parsed = parse_integer<int>(value);
  if (!parsed) throw ValueError(fmt::format("{}=\"{}\" is not a number", name, value));
  return parsed;
}

}  // namespace cohort
