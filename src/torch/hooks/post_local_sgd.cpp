// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ATen.h>
#include <cohort/current_group.h>
#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/torch/post_local_sgd.h>

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "torch/hooks/hook_support.h"

namespace cohort {

namespace {

std::string name_of_this_host() {
  if (auto given = Env::read_one("COHORT_HOST_ID"); !given.empty()) return given;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  if (boot.empty()) throw Error("this host's boot id cannot be read; name the host in COHORT_HOST_ID");
  return boot;
}

}  // namespace

ProcessGroupPtr split_by_host(ProcessGroup& group) {
  const auto names = group.all_gather_bytes(name_of_this_host());
  std::map<std::string, std::vector<int>> hosts;
  for (std::size_t rank = 0; rank < names.size(); ++rank) hosts[names[rank]].push_back(static_cast<int>(rank));
  ProcessGroupPtr mine;
  for (const auto& [name, ranks] : hosts) {
    if (auto part = group.split_group(ranks)) mine = std::move(part);
  }
  return mine;
}

PostLocalSgdState::PostLocalSgdState(PostLocalSgdOptions options) : options_(std::move(options)) {
  if (options_.start_local_sgd_iter < 0) {
    throw ValueError(fmt::format("post-local SGD: start_local_sgd_iter is {}; it must not be negative",
                                 options_.start_local_sgd_iter));
  }
  if (!options_.process_group) options_.process_group = require_current_process_group("PostLocalSgdState");
}

TensorFuture PostLocalSgdState::average(GradBucket& bucket) {
  hooks::refuse_to_capture_counting("the communication hook post_local_sgd");
  const bool is_local_now = is_local();
  if (bucket.is_last()) ++iteration_;
  if (!is_local_now) return hooks::averaged(*options_.process_group, bucket.buffer());
  if (!options_.post_local_gradient_all_reduce) return completed_future(bucket.buffer());
  if (!options_.subgroup) options_.subgroup = split_by_host(*options_.process_group);
  return hooks::averaged(*options_.subgroup, bucket.buffer());
}

CommHook hooks::post_local_sgd(std::shared_ptr<PostLocalSgdState> state) {
  if (!state) throw ValueError("the communication hook post_local_sgd needs a PostLocalSgdState, not null");
  return NamedHook{"post_local_sgd", [state = std::move(state)](GradBucket& bucket) { return state->average(bucket); }};
}

}  // namespace cohort
