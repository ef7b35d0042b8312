// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/join.h>

#include <cohort/error.h>
#include <cohort/log.h>

#include <fmt/format.h>

#include <utility>

#include "torch/host_numbers.h"

namespace cohort {

namespace {

/// After this many iterations without input a rank logs that the inputs are far from even.
constexpr int skew_warning = 1000;

class Begun {
 public:
  Begun(const std::vector<Joinable*>& members, JoinScope& scope) {
    // If one member refuses, the others are left as they were.
    try {
      for (auto* const each : members) {
        each->begin_join(scope);
        begun_.push_back(each);
      }
    } catch (...) {
      end();
      throw;
    }
  }
  ~Begun() { end(); }
  Begun(const Begun&) = delete;
  Begun& operator=(const Begun&) = delete;

 private:
  void end() noexcept {
    for (auto* const each : begun_) each->end_join();
  }
  std::vector<Joinable*> begun_;
};

}  // namespace

JoinScope::JoinScope(std::vector<Joinable*> members, const JoinOptions& options)
    : members_(std::move(members)), options_(options) {
  if (members_.empty()) throw ValueError("join: there is nothing to join");
  group_ = members_.front()->process_group();
  for (const auto* const each : members_) {
    if (each->process_group() != group_) throw ValueError("join: all members must have one process group");
  }
}

void JoinScope::count_ranks(bool has_input, bool syncs) {
  std::vector<std::int32_t> numbers{has_input ? 1 : 0, syncs ? 1 : 0};
  sum_numbers(*group_, numbers);
  last_ = {.alive = numbers[0], .syncs = numbers[1]};
  if (!options_.throw_on_early_termination || last_.alive == 0 || last_.alive == group_->size()) return;
  throw Error(
      has_input ? fmt::format("join: {} of {} ranks have no more input, and throw_on_early_termination is set",
                              group_->size() - last_.alive, group_->size())
                : fmt::format("join: rank {} has no more input, and throw_on_early_termination is set", group_->rank()),
      {.group = group_->id(), .op = "join"});
}

void JoinScope::iteration_begins(bool syncs) {
  count_ranks(true, syncs);
}

int JoinScope::source() {
  return largest_of(*group_, has_input_ ? group_->rank() : -1);
}

void JoinScope::follow() {
  has_input_ = false;
  int followed = 0;
  for (bool is_over = false;; ++followed) {
    for (auto* const each : members_) {
      count_ranks(false, false);
      is_over = last_.alive == 0;
      if (is_over) break;
      each->shadow_iteration(last_.syncs > 0);
    }
    if (is_over) break;
    if (followed + 1 == skew_warning) {
      log(LogLevel::warn, fmt::format("join: rank {} has followed the others for {} iterations without input",
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
