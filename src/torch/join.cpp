// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/join.h>

#include <cohort/error.h>
#include <cohort/log.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cohort {

namespace {

/// After so many iterations without input of its own a rank says that the shares are far from even.
constexpr int skew_warning = 1000;

class Begun {
 public:
  Begun(const std::vector<Joinable*>& members, JoinScope& scope) : members_(members) {
    for (auto* const each : members_) each->begin_join(scope);
  }
  ~Begun() {
    for (auto* const each : members_) each->end_join();
  }
  Begun(const Begun&) = delete;
  Begun& operator=(const Begun&) = delete;

 private:
  const std::vector<Joinable*>& members_;
};

}  // namespace

JoinScope::JoinScope(std::vector<Joinable*> members, const JoinOptions& options)
    : members_(std::move(members)), options_(options) {
  if (members_.empty()) throw ValueError("join: nothing takes part");
  group_ = members_.front()->join_group();
  for (const auto* const each : members_) {
    if (each->join_group() != group_) throw ValueError("join: what takes part must share one process group");
  }
}

void JoinScope::settle() {
  if (!under_way_) return;
  under_way_->wait();
  under_way_.reset();
  last_ = {.alive = sent_[0], .syncs = sent_[1]};
}

void JoinScope::iteration_begins(const Joinable& member, bool syncs) {
  if (&member != members_.front()) return;
  settle();
  sent_ = {1, syncs ? 1 : 0};
  under_way_ = group_->all_reduce(std::span(sent_), {.async_op = true});
  if (!options_.throw_on_early_termination) return;
  std::int32_t ended = 0;
  group_->all_reduce(std::span(&ended, 1));
  if (ended != 0) {
    throw Error(fmt::format("join: {} of {} ranks have no more input, and throw_on_early_termination is set", ended,
                            group_->size()),
                {.group = group_->id(), .op = "join"});
  }
}

int JoinScope::alive() {
  settle();
  return last_.alive;
}

int JoinScope::source() {
  std::int32_t rank = has_input_ ? group_->rank() : -1;
  group_->all_reduce(std::span(&rank, 1), {.op = ReduceOp::max()});
  return rank;
}

void JoinScope::follow() {
  settle();
  has_input_ = false;
  int followed = 0;
  for (;; ++followed) {
    sent_ = {0, 0};
    under_way_ = group_->all_reduce(std::span(sent_), {.async_op = true});
    if (alive() == 0) break;
    if (options_.throw_on_early_termination) {
      std::int32_t ended = 1;
      group_->all_reduce(std::span(&ended, 1));
      throw Error(fmt::format("join: rank {} has no more input, and throw_on_early_termination is set", group_->rank()),
                  {.group = group_->id(), .op = "join", .rank = group_->rank()});
    }
    for (auto* const each : members_) each->shadow_iteration(last_.syncs > 0);
    if (followed + 1 == skew_warning) {
      log(LogLevel::warn, fmt::format("join: rank {} has followed the others for {} iterations without input of its own",
                                      group_->rank(), skew_warning));
    }
  }
  for (auto* const each : members_) each->after_join(followed == 0);
}

void join(const std::vector<Joinable*>& members, const std::function<void()>& body, const JoinOptions& options) {
  JoinScope scope(members, options);
  if (!options.enable) return body();
  const Begun begun(members, scope);
  body();
  scope.follow();
}

}  // namespace cohort
