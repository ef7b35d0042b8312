// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/store_plan.h"

#include <cohort/error.h>
#include <cohort/secret.h>
#include <cohort/tcp_store.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "store/handshake.h"

namespace cohort {

namespace {

/// FNV-1a, which gives the same value everywhere, unlike std::hash.
std::uint32_t stable_hash(std::string_view text) {
  std::uint32_t hash = 2166136261U;
  for (const auto c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 16777619U;
  return hash;
}

/// A port that all ranks compute alike. It is below the range that the kernel hands out, and is not the launcher's own.
std::uint16_t derived_port(const Launch& launch) {
  constexpr std::uint32_t first = 20000;
  constexpr std::uint32_t count = 8000;
  const auto seed = fmt::format("{}:{}", launch.job, launch.master_port.value_or(0));
  const auto port = first + stable_hash(seed) % count;
  return static_cast<std::uint16_t>(port == launch.master_port ? port + 1 : port);
}

bool is_one_host(const Launch& launch) {
  if (launch.size == 1) return true;
  if (launch.launcher != Launcher::by_hand && launch.local_size == launch.size) return true;
  const auto source = launch.found_in.find("master_addr");
  if (source == launch.found_in.end() || source->second != "MASTER_ADDR") return false;
  try {
    return is_loopback(launch.master_addr);
  } catch (const NetworkError&) {
    return false;  // a name that does not resolve yet is some other host's
  }
}

ValueError missing(std::string_view variable, const Launch& launch) {
  std::string hint;
  switch (launch.launcher) {
    case Launcher::open_mpi:
      hint = fmt::format("; pass it with mpirun -x {}=...", variable);
      break;
    case Launcher::pmi:
      hint = fmt::format("; pass it with mpirun -genv {} ...", variable);
      break;
    default:
      hint = "; \"cohort run\" sets all that is needed";
      break;
  }
  ValueError error(fmt::format("env:// rendezvous of {} processes started {}{}: {} is missing or empty{}", launch.size,
                               launch.launcher == Launcher::by_hand ? "" : "by ", to_string(launch.launcher), variable,
                               hint));
  return error;
}

/// A name that others can compute, with `job`, or with the secret one that they cannot, so that they cannot take it
/// before the job does.
std::string socket_name(const std::string& job, const std::string& secret_file) {
  if (!secret_file.empty()) {
    const auto hash = handshake::proof_under(Secret::load(secret_file).bytes(), "cohort store socket " + job);
    return fmt::format("@cohort/{}/{:02x}", ::geteuid(), fmt::join(hash.begin(), hash.begin() + hash.size() / 2, ""));
  }
  auto name = fmt::format("@cohort/{}/{}", ::geteuid(), job);
  // An abstract name has at most 107 characters, so the hash stands for a longer job name.
  if (name.size() <= 100) return name;
  return fmt::format("@cohort/{}/{:08x}-{}", ::geteuid(), stable_hash(job), job.substr(job.size() - 40));
}

StorePlan on_one_host(const Launch& launch, const Env& env) {
  // The name must differ between the jobs of one user on one host, and be the same for all ranks of a job.
  std::string job = launch.job;
  if (launch.launcher == Launcher::by_hand || launch.launcher == Launcher::torchrun || job.empty()) {
    if (!launch.master_port) throw missing("MASTER_PORT", launch);
    job += fmt::format(":{}", *launch.master_port);
  }
  if (launch.restart_count > 0) job += fmt::format("#{}", launch.restart_count);
  StorePlan plan;
  plan.endpoint = Endpoint::unix_socket(socket_name(job, env.secret_file));
  plan.job_id = job;
  plan.secret_file = env.secret_file;
  return plan;
}

StorePlan on_several_hosts(const Launch& launch, const Env& env) {
  if (launch.master_addr.empty()) throw missing("MASTER_ADDR", launch);
  StorePlan plan;
  plan.job_id = launch.job;
  plan.secret_file = env.secret_file;
  plan.insecure = env.insecure;
  if (launch.launcher == Launcher::by_hand) {
    if (!launch.master_port) throw missing("MASTER_PORT", launch);
    plan.endpoint = Endpoint::tcp(launch.master_addr, *launch.master_port);
  } else {
    plan.endpoint = Endpoint::tcp(launch.master_addr, env.store_port.value_or(derived_port(launch)));
  }
  if (plan.secret_file.empty() && !plan.insecure) {
    throw ValueError(
        fmt::format("this job runs on several hosts (its store would be at {}) and has no secret: make one with "
                    "\"cohort secret FILE\", "
                    "put the file on every host and set COHORT_SECRET_FILE=FILE; or set COHORT_INSECURE=1 if everyone "
                    "who can reach "
                    "that port may take part in the job",
                    to_string(plan.endpoint)));
  }
  return plan;
}

}  // namespace

StorePlan plan_store(const Launch& launch, const Env& env) {
  if (!env.store.empty()) {
    StorePlan plan;
    plan.endpoint = Endpoint::parse(env.store);
    plan.launcher_hosts = true;
    plan.job_id = env.run_id;
    plan.secret_file = env.secret_file;
    plan.insecure = env.insecure;
    return plan;
  }
  if (launch.launcher == Launcher::by_hand) {
    if (launch.master_addr.empty()) throw missing("MASTER_ADDR", launch);
    if (!launch.master_port) throw missing("MASTER_PORT", launch);
  }
  return is_one_host(launch) ? on_one_host(launch, env) : on_several_hosts(launch, env);
}

}  // namespace cohort
