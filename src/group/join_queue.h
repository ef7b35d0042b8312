// SPDX-License-Identifier: BSD-3-Clause
//
// Where processes wait that want to join a group (join_group), and where rank 0 of the group finds them (grow). It is a
// few keys in the job's store.
//
// A newcomer draws a ticket, says which rank it wants, and waits for admission. Rank 0 takes the tickets that it
// admits; a newcomer that gives up withdraws its ticket; compare_set decides which of the two came first. Last wills
// tell rank 0 that a newcomer has died, and the newcomers whose tickets it has that rank 0 has, so that they ask again.
#pragma once

#include <cohort/deadline.h>
#include <cohort/store.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohort {

/// A newcomer's request.
struct JoinRequest {
  std::int64_t ticket = 0;
  int global_rank = 0;
  std::string backend{};
};

/// How the new group is made: an assembly (assembly.h) of these members.
struct GrowthPlan {
  std::int64_t number = 0;  ///< of this growth, for the prefix of its keys
  std::chrono::milliseconds time{};
  std::vector<int> global_ranks{};  ///< of the new group's ranks, in their order

  std::string encode() const;
  /// nullopt for an empty text: nobody joins.
  static std::optional<GrowthPlan> decode(const std::string& text);
};

class JoinQueue {
 public:
  /// The join queue of the groups with this name. Opens a connection of its own to the job's store.
  JoinQueue(const StorePtr& job, const std::string& name);
  ~JoinQueue();
  JoinQueue(const JoinQueue&) = delete;
  JoinQueue& operator=(const JoinQueue&) = delete;

  /// The keys for the assembly of a growth, on a connection of their own.
  StorePtr assembly_keys(std::int64_t growth);

  // --- for a newcomer
  /// Waits until the deadline for admission; nullopt if there was none. Until the object is destroyed, rank 0 notices
  /// that this process has died. Throws ValueError if the request was refused.
  std::optional<GrowthPlan> ask(int global_rank, const std::string& backend, Deadline deadline);

  // --- for rank 0 of the group
  /// The requests that nobody has answered, once there are `at_least` or at the deadline. Those that cannot be admitted
  /// are answered here: the rank that they want is one of `taken`, or they give another backend.
  std::vector<JoinRequest> requests(const std::vector<int>& taken, const std::string& backend, int at_least,
                                    Deadline deadline);
  std::int64_t number_growth() { return store_->add("growths", 1, store_timeout); }
  void admit(const JoinRequest& request, const GrowthPlan& plan);
  /// The newcomer is to ask again.
  void defer(const JoinRequest& request);
  bool has_died(const JoinRequest& request);

 private:
  static constexpr std::chrono::milliseconds store_timeout{5000};

  /// nullopt: there was none until the deadline, and there will be none.
  std::optional<std::string> await_answer(std::int64_t ticket, Deadline deadline);
  bool claim(std::int64_t ticket);
  void answer(std::int64_t ticket, const std::string& text);
  /// What the store sets if this process dies.
  void set_will(Store::Keys keys, const std::string& value);
  /// nullopt: it cannot be admitted, and was told so, or is gone.
  std::optional<JoinRequest> examine(std::int64_t ticket, const std::vector<int>& taken, const std::string& backend);

  StorePtr store_;
  const std::string mark_;  ///< on the tickets that this object has claimed
  Store::Keys will_;
};

}  // namespace cohort
