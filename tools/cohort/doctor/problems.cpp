// SPDX-License-Identifier: BSD-3-Clause
//
// What is wrong, and how to mend it. An error is what will make a job fail; a warning what may, or makes it slow.
#include <cohort/endpoint.h>
#include <cohort/error.h>
#include <cohort/secret.h>

#include <fmt/format.h>

#include <utility>

#include "doctor/report.h"

namespace cohort::tool {

namespace {

constexpr std::uint64_t small_dev_shm = std::uint64_t{512} << 20U;
constexpr std::uint64_t few_open_files = 4096;
constexpr int many_cpus = 8;

class Findings {
 public:
  Findings(const Report& report, const std::optional<Env>& env) : report_(report), env_(env) {}

  std::vector<Problem> all() {
    launch();
    secret();
    tls();
    names();
    threads();
    shared_memory();
    open_files();
    ptrace();
    gpus();
    return std::move(problems_);
  }

 private:
  void add(Severity severity, std::string id, std::string what, std::string fix) {
    problems_.push_back({.severity = severity, .id = std::move(id), .what = std::move(what), .fix = std::move(fix)});
  }

  void launch() {
    if (report_.launch.error.empty()) return;
    add(Severity::error, "launch_environment", report_.launch.error,
        "set the launcher's variables completely, or unset them; cohort run sets them all");
  }

  /// Whether a rendezvous over env:// would leave this host.
  bool spans_hosts() const {
    const auto& found = report_.launch.found;
    if (!found || !env_ || !env_->store.empty()) return false;
    if (found->local_size == found->size) return false;
    return !found->master_addr.empty() && host_known(found->master_addr) && !is_loopback(found->master_addr);
  }

  /// Resolves at most once, so that a name server that hangs costs its two seconds only once.
  bool host_known(const std::string& name) const {
    if (!master_resolves_) master_resolves_ = host_resolves(name);
    return *master_resolves_;
  }

  void secret() {
    if (!env_) return;
    if (!env_->secret_file.empty()) {
      try {
        static_cast<void>(Secret::load(env_->secret_file));
      } catch (const Error& e) {
        add(Severity::error, "secret_file", fmt::format("COHORT_SECRET_FILE: {}", e.message()),
            "the file must be yours and have mode 600; make it with: cohort secret FILE");
      }
      return;
    }
    if (env_->insecure) {
      add(Severity::warning, "insecure",
          "COHORT_INSECURE is set: anyone who can reach the store's port can join the job",
          "unset it, and set COHORT_SECRET_FILE to a file made with: cohort secret FILE");
    } else if (spans_hosts()) {
      add(Severity::error, "no_secret", "the job spans several hosts and has no secret; its rendezvous will be refused",
          "run: cohort secret FILE, copy the file to each host, set COHORT_SECRET_FILE to it");
    }
  }

  void tls() {
    if (!env_) return;
    const int given = int{!env_->tls_ca.empty()} + int{!env_->tls_cert.empty()} + int{!env_->tls_key.empty()};
    if (given != 0 && given != 3) {
      add(Severity::error, "tls_incomplete", fmt::format("{} of the three TLS files are given", given),
          "set COHORT_TLS_CA, COHORT_TLS_CERT and COHORT_TLS_KEY, or none");
    }
  }

  void names() {
    if (!report_.host.resolves) {
      add(Severity::warning, "host_name",
          fmt::format("this host's own name, \"{}\", does not resolve within two seconds", report_.host.name),
          fmt::format("add it to /etc/hosts: 127.0.1.1 {}", report_.host.name));
    }
    const auto& found = report_.launch.found;
    if (found && !found->master_addr.empty() && !host_known(found->master_addr)) {
      add(Severity::error, "master_addr",
          fmt::format("the host of rank 0, \"{}\", does not resolve within two seconds", found->master_addr),
          "check MASTER_ADDR, the name server and /etc/hosts");
    }
  }

  void threads() {
    if (!env_ || !env_->text("OMP_NUM_THREADS").empty()) return;
    const auto& found = report_.launch.found;
    if (found && found->size > 1 && report_.cpu.usable > 1) {
      add(Severity::warning, "omp_num_threads",
          fmt::format("OMP_NUM_THREADS is not set: each rank starts {} threads on the same CPUs", report_.cpu.usable),
          fmt::format("set OMP_NUM_THREADS={}, or start the job with cohort run, which does",
                      std::max(1, report_.cpu.usable / found->local_size.value_or(found->size))));
    } else if (!found && report_.cpu.usable >= many_cpus) {
      add(Severity::note, "omp_num_threads",
          fmt::format("OMP_NUM_THREADS is not set: ranks not started by cohort run use {} threads each",
                      report_.cpu.usable),
          "with another launcher, set it to the number of CPUs per rank");
    }
  }

  void shared_memory() {
    const auto size = report_.memory.dev_shm_size;
    if (!size) {
      add(Severity::warning, "dev_shm", "there is no /dev/shm; MPI and NCCL keep their buffers there",
          "mount -t tmpfs tmpfs /dev/shm");
    } else if (*size < small_dev_shm) {
      add(Severity::warning, "dev_shm",
          fmt::format("/dev/shm has only {} MiB; MPI and NCCL keep their buffers there", *size >> 20U),
          "mount -o remount,size=50% /dev/shm; in a container: docker run --shm-size=8g, or an emptyDir of medium "
          "Memory");
    }
  }

  void open_files() {
    const auto limit = report_.limits.open_files;
    if (!limit || *limit >= few_open_files) return;
    const auto hard = report_.limits.open_files_hard;
    const bool can_raise = !hard || *hard > *limit;
    add(Severity::warning, "open_files",
        fmt::format("a process may open {} files; the store takes one for each connection", *limit),
        can_raise ? fmt::format("ulimit -n {}", hard ? fmt::to_string(*hard) : std::string("65536"))
                  : "raise the hard limit: nofile in /etc/security/limits.conf, or LimitNOFILE= of the service");
  }

  void ptrace() {
    const auto scope = report_.limits.ptrace_scope.value_or(0);
    if (scope == 0) return;
    add(Severity::note, "ptrace_scope",
        fmt::format("kernel.yama.ptrace_scope is {}: ranks may not read each other's memory, so large messages between "
                    "processes need one more copy",
                    scope),
        "sysctl kernel.yama.ptrace_scope=0, if every user of the host can be trusted");
  }

  void gpus() {
    const auto& gpu = report_.gpu;
    if (!gpu.gpus.empty() && gpu.device_files == 0) {
      add(Severity::warning, "gpu_devices",
          fmt::format("the driver knows {} GPUs, but there is no /dev/nvidia0", gpu.gpus.size()),
          "in a container: docker run --gpus all; otherwise run: nvidia-modprobe -u");
    }
    if (gpu.device_files > 0 && !gpu.libcuda) {
      add(Severity::warning, "libcuda", "there are GPUs, but libcuda.so.1 cannot be loaded",
          "install the driver's user-space part, libcuda1, in the version of the kernel module");
    }
  }

  const Report& report_;
  const std::optional<Env>& env_;
  mutable std::optional<bool> master_resolves_;
  std::vector<Problem> problems_;
};

}  // namespace

std::vector<Problem> find_problems(const Report& report, const std::optional<Env>& env) {
  return Findings(report, env).all();
}

}  // namespace cohort::tool
