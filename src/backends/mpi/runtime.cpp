// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/runtime.h"

#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/log.h>

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <utility>

#include "core/immortal.h"
#include "core/module.h"
#include "core/run_with_deadline.h"

namespace cohort::mpi {

namespace {

std::optional<Flavour> flavour_of_launcher(const Env& env) {
  const auto is_set = [&](std::string_view name) { return !env.text(name).empty(); };
  if (is_set("OMPI_COMM_WORLD_SIZE")) return Flavour::openmpi;
  const auto of_slurm = env.text("SLURM_MPI_TYPE");
  if (of_slurm.starts_with("pmix")) return Flavour::openmpi;
  if (of_slurm == "pmi2" || of_slurm.starts_with("cray")) return Flavour::mpich;
  if (is_set("PMI_SIZE") || is_set("PMI_RANK") || is_set("PALS_RANKID")) return Flavour::mpich;
  if (is_set("PMIX_NAMESPACE")) return Flavour::openmpi;
  return std::nullopt;
}

/// Tells apart the groups that threads of the same processes make at the same time. Every MPI has at least 32768 tags.
int tag_of(std::string_view group) {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char each : group) hash = (hash ^ static_cast<std::uint8_t>(each)) * 16777619U;
  return static_cast<int>((hash ^ (hash >> 15U)) & 0x7FFFU);
}

Library& load_library() {
  const auto env = Env::read();
  const auto flavour = choose_flavour(env, loaded_mpi());
  const auto module = Module::of_engine(fmt::format("mpi_{}", to_string(flavour)), env.text("COHORT_MODULE_PATH"),
                                        flavour == Flavour::openmpi ? "libmpi.so" : "libmpich", "MPI_Init");
  const auto get = module.find<GetLibrary>(get_library_symbol);
  if (get == nullptr) {
    throw ValueError(
        fmt::format("backend mpi: this program runs under {0}, whose module is not here ({1}): install {2} "
                    "and build Cohort again",
                    title_of(flavour), module.why_not(), package_of(flavour)));
  }
  return *get();
}

}  // namespace

std::string_view to_string(Flavour flavour) {
  return flavour == Flavour::openmpi ? "openmpi" : "mpich";
}
std::string_view title_of(Flavour flavour) {
  return flavour == Flavour::openmpi ? "Open MPI" : "MPICH";
}
std::string_view package_of(Flavour flavour) {
  return flavour == Flavour::openmpi ? "libopenmpi-dev" : "libmpich-dev";
}

std::optional<Flavour> flavour_of_version(std::string_view version) {
  if (version.find("Open MPI") != std::string_view::npos) return Flavour::openmpi;
  for (const std::string_view relative : {"MPICH", "MVAPICH", "Intel(R) MPI", "CRAY MPICH"}) {
    if (version.find(relative) != std::string_view::npos) return Flavour::mpich;
  }
  return std::nullopt;
}

Flavour choose_flavour(const Env& env, const LoadedMpi& loaded) {
  const auto wanted = env.text("COHORT_MPI");
  if (!wanted.empty() && wanted != "openmpi" && wanted != "mpich") {
    throw ValueError(fmt::format("COHORT_MPI=\"{}\": openmpi or mpich", wanted));
  }
  const auto flavour_of_loaded = [&] {
    const auto flavour = flavour_of_version(loaded.version);
    if (flavour) return *flavour;
    throw ValueError(fmt::format("backend mpi knows Open MPI and MPICH; the program uses {}", loaded.version));
  };
  if (loaded.is_initialized) {
    const auto flavour = flavour_of_loaded();
    if (!wanted.empty() && wanted != to_string(flavour)) {
      throw ValueError(fmt::format("COHORT_MPI={}, but the program itself uses {}", wanted, title_of(flavour)));
    }
    return flavour;
  }
  if (!wanted.empty()) return wanted == "openmpi" ? Flavour::openmpi : Flavour::mpich;
  if (const auto flavour = flavour_of_launcher(env)) return *flavour;
  if (!loaded.version.empty()) return flavour_of_loaded();
  const bool by_cohort = !env.run_id.empty() || !env.store.empty();
  throw ValueError(
      fmt::format("backend mpi needs a program that was started by MPI's own launcher{}: mpirun -n 4 PROGRAM, or srun "
                  "--mpi=pmix -n 4 PROGRAM (Open MPI), srun --mpi=pmi2 -n 4 PROGRAM (MPICH); COHORT_MPI=openmpi or "
                  "COHORT_MPI=mpich says which MPI it is where the environment does not tell",
                  by_cohort ? ", not by cohort run" : ""));
}

LoadedMpi loaded_mpi() {
  using GetVersion = int (*)(char*, int*);
  using IsInitialized = int (*)(int*);
  const auto get = reinterpret_cast<GetVersion>(::dlsym(RTLD_DEFAULT, "MPI_Get_library_version"));
  const auto ask = reinterpret_cast<IsInitialized>(::dlsym(RTLD_DEFAULT, "MPI_Initialized"));
  if (get == nullptr || ask == nullptr) return {};
  std::array<char, 16'384> text{};  // more than any MPI_MAX_LIBRARY_VERSION_STRING (Open MPI: 256, MPICH: 8192)
  int length = 0;
  int is_initialized = 0;
  if (get(text.data(), &length) != 0 || ask(&is_initialized) != 0) return {};
  return {.version = {text.data(), static_cast<std::size_t>(length)}, .is_initialized = is_initialized != 0};
}

Runtime& Runtime::of_process(Deadline deadline) {
  static Immortal<Runtime> runtime(load_library());  // if this throws, the next call tries again
  runtime->start(deadline);
  // Made when MPI has been initialised, and so destroyed before MPI's own exit handlers run. After those, MPICH 5 does
  // not tell its launcher any more that the process has finalised, and the launcher kills the others.
  static const struct AtExit {
    ~AtExit() { runtime->finish(); }
  } at_exit;
  return *runtime;
}

void Runtime::start(Deadline deadline) {
  const auto late = [] {
    return OperationTimeoutError("MPI_Init did not return in time: not all processes of the job have called it",
                                 {.op = "new_group"});
  };
  const TimedLock alone(start_turn_, deadline);
  if (!alone) throw late();
  if (is_started_) return;
  if (is_lost_) throw BackendError("backend mpi: MPI_Init missed its deadline, and cannot be called again");
  if (library_.is_finalized()) throw ValueError("backend mpi: the program has called MPI_Finalize already");
  if (library_.is_initialized()) {
    accept(library_.thread_level(), false);
  } else {
    // MPI_Init waits for the other processes of the job, and takes no deadline.
    const auto level = std::make_shared<std::atomic<ThreadLevel>>(ThreadLevel::single);
    if (!run_with_deadline([this, level] { *level = library_.initialize(); }, deadline)) {
      is_lost_ = true;
      throw late();
    }
    accept(*level, true);
  }
  pid_ = ::getpid();
  largest_tag_ = library_.largest_tag();
  is_started_ = true;
  log(LogLevel::info, fmt::format("backend mpi: {}", library_.version()));
}

void Runtime::accept(ThreadLevel level, bool is_ours) {
  if (level < ThreadLevel::serialized) {
    throw ValueError(is_ours
                         ? fmt::format("backend mpi: {} was not built for threads", library_.version())
                         : "backend mpi: the program initialised MPI for one thread; call MPI_Init_thread and ask for "
                           "MPI_THREAD_MULTIPLE (or MPI_THREAD_SERIALIZED), or leave MPI_Init to Cohort");
  }
  level_ = level;
  is_ours_ = is_ours;
}

void Runtime::finish() {
  if (!is_started_ || !is_ours_ || has_left_behind() || pid_ != ::getpid()) return;
  try {
    if (!library_.is_finalized()) library_.finalize();
  } catch (const std::exception& e) {
    log(LogLevel::warn, fmt::format("backend mpi: {}", e.what()));
  }
}

Runtime::Held::Held(TimedMutex& turns, Deadline deadline) {
  if (holder_.emplace(turns, deadline)) return;
  throw OperationTimeoutError(
      "MPI was initialised for one call at a time (MPI_THREAD_SERIALIZED), and another call did not return in time");
}

void Runtime::leave_behind(std::shared_ptr<const void> what) {
  has_left_behind_ = true;
  const std::lock_guard lock(mutex_);
  left_behind_.push_back(std::move(what));
}

Op Runtime::own_op(std::size_t index, Combine combine) {
  const std::lock_guard lock(mutex_);
  for (const auto& [known, op] : own_ops_) {
    if (known == index) return op;
  }
  own_ops_.emplace_back(index, library_.create_op(combine));
  return own_ops_.back().second;
}

Communicator create_communicator(Runtime& runtime, const std::vector<int>& world_ranks, std::string_view group,
                                 Deadline deadline) {
  const auto made = std::make_shared<std::atomic<Communicator>>();
  const ErrorContext context{.group = std::string(group), .op = "new_group"};
  try {
    const bool is_done = run_with_deadline(
        [&runtime, made, world_ranks, tag = tag_of(group), deadline] {
          const auto turn = runtime.turn(deadline);
          *made = runtime.library().create_communicator(world_ranks, tag);
        },
        deadline);
    if (is_done) return *made;
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& e) {
    throw BackendError(e.what(), context);
  }
  runtime.leave_behind(nullptr);
  throw OperationTimeoutError("MPI_Comm_create_group did not return in time: a rank has not joined", context);
}

}  // namespace cohort::mpi
