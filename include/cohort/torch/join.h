// SPDX-License-Identifier: BSD-3-Clause
//
// Uneven inputs: ranks that run out of input early keep taking part in the collectives of the other ranks, without
// contributing anything, until all ranks have ended.
//
//   cohort::join({&ddp}, [&] { while (loader.next(batch)) train(batch); });
//
// Afterwards all ranks have the parameters and buffers of the rank that ended last. Optimizers take no part: those of
// ranks that ended early have old moments, and the models drift apart unless all ranks get the state of one optimizer.
// Zero gradients in each iteration and accumulate in no_sync: what a backward adds to averages that an earlier one has
// left counts too little once a rank has ended. Both are so in PyTorch, too.
//
// Ranks without input follow the members only, and not other collectives in the body: SyncBatchNorm, an averaged loss,
// a checkpoint. Call these after the join, or set throw_on_early_termination, so that all ranks end with an Error.
//
// Several models call forward and backward in each iteration in the order in which they were given. A communication
// hook divides by the number of all ranks itself, so it is refused together with divide_by_initial_size = false. A
// buffer hook runs on ranks without input as well, with the buffers that they have.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace cohort {

struct JoinOptions {
  /// Divides gradients by the size of the group, which keeps the weight of each input. false: divides by the number of
  /// ranks that still have input.
  bool divide_by_initial_size = true;
  /// false: the body runs as if there were no join.
  bool enable = true;
  bool throw_on_early_termination = false;
};

class Joinable;

/// A join that is under way, as its members see it.
class COHORT_API JoinScope {
 public:
  JoinScope(std::vector<Joinable*> members, const JoinOptions& options);

  const JoinOptions& options() const { return options_; }
  /// Called by each member at the beginning of each of its iterations, in the order of the members. It tells the other
  /// ranks that this rank still has input and whether it will synchronise.
  void iteration_begins(bool syncs);
  /// The number of ranks that have input in this iteration.
  int alive() const { return last_.alive; }
  /// Collective. A rank that has input, the same one on all ranks.
  int source();

  /// Called when this rank has no more input: takes part in the iterations of the other ranks until all have ended.
  void follow();

 private:
  struct Message {
    std::int32_t alive = 0;
    std::int32_t syncs = 0;
  };
  /// Counts the ranks that have input. With throw_on_early_termination it is an Error if some of them have none.
  void count_ranks(bool has_input, bool syncs);

  std::vector<Joinable*> members_;
  JoinOptions options_;
  ProcessGroupPtr group_;
  bool has_input_ = true;
  Message last_{};
};

/// Something that can take part in a join, such as DistributedDataParallel.
class COHORT_API Joinable {
 public:
  virtual ~Joinable() = default;
  virtual const ProcessGroupPtr& process_group() const = 0;
  /// From now on until end_join() the member calls scope.iteration_begins() in each of its iterations.
  virtual void begin_join(JoinScope& scope) = 0;
  virtual void end_join() noexcept = 0;
  /// Takes part in one iteration of the ranks that have input.
  virtual void shadow_iteration(bool syncs) = 0;
  /// Called on all ranks when all have ended; `was_last` tells whether this rank was among the last.
  virtual void after_join(bool was_last) = 0;
};

/// Runs `body`, then follows the ranks that still have input. All members must have the same group; different groups,
/// or no members, are a ValueError. An exception that leaves the body is passed on at once, and the other ranks run
/// into their deadlines.
COHORT_API void join(const std::vector<Joinable*>& members, const std::function<void()>& body,
                     const JoinOptions& options = {});

}  // namespace cohort
