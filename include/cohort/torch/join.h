// SPDX-License-Identifier: BSD-3-Clause
//
// Uneven inputs: ranks that run out of input early go on taking part in what the others do together, with nothing of
// their own, until all have ended.
//
//   cohort::join({&ddp}, [&] { while (loader.next(batch)) train(batch); });
//
// Afterwards all ranks have the parameters and buffers of the one that ended last. One small all_reduce for each
// forward tells who is still there.
//
// Whatever else the body does together with other ranks is not followed: a model with collectives of its own
// (SyncBatchNorm), a loss averaged for display, a checkpoint. Do such things after the join, or set
// throw_on_early_termination, and all ranks end with an Error as soon as the first has no more input.
//
// Several models are called one after the other in each iteration, forward and backward of each, in the order in which
// they were given. A communication hook divides as it does anywhere: divide_by_initial_world_size is not for it.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace cohort {

struct JoinOptions {
  /// Gradients are divided by the number of ranks there were, which keeps the weight of each input; false: by how many
  /// still have input.
  bool divide_by_initial_world_size = true;
  /// false: the body runs as if there were no join.
  bool enable = true;
  bool throw_on_early_termination = false;
};

class Joinable;

/// What those who take part know of a join under way.
class COHORT_API JoinScope {
 public:
  JoinScope(std::vector<Joinable*> members, const JoinOptions& options);

  const JoinOptions& options() const { return options_; }
  /// Called by each member where one of its iterations begins, in the order of the members: tells the other ranks that
  /// this one is still there and whether it will synchronise.
  void iteration_begins(bool syncs);
  /// How many ranks have input in this iteration.
  int alive() const { return last_.alive; }
  /// A rank that has input, the same on all ranks; called by all of them.
  int source();

  /// Of a rank that has ended: the others' iterations, until there are none.
  void follow();

 private:
  struct Message {
    std::int32_t alive = 0;
    std::int32_t syncs = 0;
  };
  /// Who is there, in one small exchange; an Error where the first that has ended ends it for all.
  void exchange(bool is_here, bool syncs);

  std::vector<Joinable*> members_;
  JoinOptions options_;
  ProcessGroupPtr group_;
  bool has_input_ = true;
  Message last_{};
};

class COHORT_API Joinable {
 public:
  virtual ~Joinable() = default;
  virtual ProcessGroupPtr join_group() const = 0;
  /// Until end_join() it calls scope.iteration_begins() in each of its iterations.
  virtual void begin_join(JoinScope& scope) = 0;
  virtual void end_join() noexcept = 0;
  /// Takes part in one iteration of ranks that have input.
  virtual void shadow_iteration(bool syncs) = 0;
  /// When all have ended; called by all ranks, with whether this one was among the last.
  virtual void after_join(bool was_last) = 0;
};

/// Runs `body`, then follows those who still have input. Several members share one group: different ones, or none, are
/// a ValueError. An exception that leaves the body goes on at once, and the other ranks see their deadlines.
COHORT_API void join(const std::vector<Joinable*>& members, const std::function<void()>& body,
                     const JoinOptions& options = {});

}  // namespace cohort
