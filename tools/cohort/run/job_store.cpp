// SPDX-License-Identifier: BSD-3-Clause
#include "run/job_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "common/throw_errno.h"

namespace cohort::tool {

namespace {

std::string random_id() {
  return Secret::generate().hex().substr(0, 32);
}

/// Ranks open it by its name under /proc: a wrapper script may close a descriptor, but it keeps the name.
FileDescriptor put_in_memory(const Secret& secret) {
  FileDescriptor memory(::memfd_create("cohort-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) throw_errno("cannot keep the job's secret in memory (memfd_create)");
  const auto text = secret.hex() + "\n";
  if (::fchmod(memory.get(), S_IRUSR | S_IWUSR) != 0 ||
      ::write(memory.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_errno("cannot keep the job's secret in memory");
  }
  return memory;
}

}  // namespace

JobStore::JobStore(const LaunchPlan& plan) : run_id_(plan.job_name) {
  if (plan.is_one_host()) {
    host_for_one();
  } else {
    prepare_for_several(plan);
  }
}

void JobStore::host_for_one() {
  // The name of the socket is random, since two jobs on a host may be given the same --rdzv-id.
  const auto id = random_id();
  if (run_id_.empty()) run_id_ = id;
  const auto secret = Secret::generate();
  secret_memory_ = put_in_memory(secret);
  secret_file_ = fmt::format("/proc/{}/fd/{}", ::getpid(), secret_memory_.get());
  client_.endpoint = Endpoint::unix_socket("@cohort/run/" + id);
  client_.secret = secret;
  client_.job_id = run_id_;
  server_ = std::make_unique<StoreServer>(
      StoreServerOptions{.endpoint = client_.endpoint, .secret = secret, .job_id = run_id_});
}

void JobStore::prepare_for_several(const LaunchPlan& plan) {
  client_.endpoint = plan.endpoint;
  client_.insecure = plan.env.insecure;
  client_.tls = tls_options(plan.env);
  client_.job_id = run_id_;
  if (!plan.env.secret_file.empty()) {
    secret_file_ = std::filesystem::absolute(plan.env.secret_file);  // ranks may run elsewhere
    client_.secret = Secret::load(secret_file_);
  }
  if (plan.node_rank != 0) return;
  server_ = std::make_unique<StoreServer>(StoreServerOptions{.endpoint = plan.listen_on,
                                                             .secret = client_.secret,
                                                             .insecure = client_.insecure,
                                                             .tls = client_.tls,
                                                             .job_id = run_id_});
}

void JobStore::wait_until_left(Deadline deadline) {
  if (server_) server_->wait_until_left(deadline);
}

}  // namespace cohort::tool
