// SPDX-License-Identifier: BSD-3-Clause
#include "run/job_store.h"

#include <cohort/prefix_store.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "common/throw_errno.h"
#include "core/log_format.h"
#include "rendezvous/job_keys.h"
#include "store/socket.h"

namespace cohort::tool {

namespace {

std::string random_id() {
  return Secret::generate().hex().substr(0, 32);
}

/// Ranks open it by its name under /proc: a wrapper script may close a descriptor, but it keeps the name.
FileDescriptor put_in_memory(const Secret& secret) {
  FileDescriptor memory(::memfd_create("cohort-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) throw_errno("cannot keep the job's secret in memory (memfd_create)");
  auto text = secret.hex() + "\n";
  const auto written = ::write(memory.get(), text.data(), text.size());
  ::explicit_bzero(text.data(), text.size());  // for the sake of core dumps
  if (written != static_cast<ssize_t>(text.size()) || ::fchmod(memory.get(), S_IRUSR | S_IWUSR) != 0 ||
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
  if (!client_.secret && !client_.insecure && is_loopback(plan.listen_on.host)) {
    log_warn(
        "the store of this job, at {}, asks for no secret: every user of this host can join the job, and read and "
        "change what its ranks tell each other; run \"cohort secret FILE\" and set COHORT_SECRET_FILE=FILE, or "
        "COHORT_INSECURE=1 if that is intended",
        to_string(plan.listen_on));
  }
  server_ = std::make_unique<StoreServer>(StoreServerOptions{.endpoint = plan.listen_on,
                                                             .secret = client_.secret,
                                                             .insecure = client_.insecure,
                                                             .tls = client_.tls,
                                                             .job_id = run_id_});
}

bool JobStore::has_unfinished_group(int attempt, int ranks) const {
  constexpr std::chrono::seconds store_timeout{2};
  try {
    auto options = client_;
    options.timeout = store_timeout;
    PrefixStore keys(attempt_prefix(attempt), std::make_shared<TcpStore>(options));
    if (keys.check({group_made_key}, store_timeout)) return false;
    for (int rank = 0; rank < ranks; ++rank) {
      for (const auto& key : {begun_key("", rank), begun_named_key(rank)}) {
        if (keys.check({key}, store_timeout)) return true;
      }
    }
  } catch (const Error& e) {
    log_debug("the job's store cannot be asked whether there is a group: {}", e.what());
  }
  return false;
}

void JobStore::wait_until_left(Deadline deadline) {
  if (server_) server_->wait_until_left(deadline);
}

}  // namespace cohort::tool
