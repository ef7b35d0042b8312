// SPDX-License-Identifier: BSD-3-Clause
//
// The operations of a c10d group on one type of device, as a backend.
//
// All ranks must make the same calls of c10d, so these are chosen only by what all of them know: the operation, its
// sizes where they are equal everywhere, and the name of c10d's backend. What some of c10d's backends lack is made of
// what all of them have:
//
//   - all_gather of different sizes: a broadcast from each rank.
//   - reduce_scatter where the backend has none, or with different sizes: an all_reduce of a copy.
//   - all_to_all of lists: one of packed pieces with their sizes.
//   - avg where the backend has none: the sum, divided. premul_sum: the product, summed.
//   - bool as numbers 0 and 1, complex numbers as pairs, and unsigned numbers as signed ones of their size, except for
//     min and max.
//   - what is empty on all ranks: a barrier; an empty message: one byte.
//
// After an error or a missed deadline of a collective nobody can say what c10d still does. The group ends then: later
// operations fail with that reason, and what c10d has been given is never freed.
//
// A message that missed its deadline stays with c10d. A send may still be received; a receive is taken over by the next
// one of the same peer, tag and size.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <cohort/backend.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "backends/common/group_status.h"
#include "torch/c10d/c10d_message.h"
#include "torch/c10d/c10d_operands.h"
#include "torch/c10d/c10d_reduction.h"
#include "torch/c10d/c10d_stream.h"

namespace cohort {

class C10dGroupBackend final : public Backend {
 public:
  using C10dGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// On a device other than the host it is stream-ordered, and moves host data through memory of that device.
  C10dGroupBackend(C10dGroupPtr group, at::Device device, const std::string& id);
  ~C10dGroupBackend() override;
  C10dGroupBackend(const C10dGroupBackend&) = delete;
  C10dGroupBackend& operator=(const C10dGroupBackend&) = delete;

  Capabilities capabilities() const override;
  void check_arguments(const Operation& op) const override;
  int perform(const Operation& op, Call& call) override;
  std::unique_ptr<Transfer> start_send(const Operation& op, Call& call) override;
  std::unique_ptr<Transfer> start_recv(const Operation& op, Call& call) override;
  void rest(Deadline until) override;
  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  BackendPtr partition(std::span<const BackendSplit> parts, Deadline deadline) override;
  void abort(std::string_view reason) override;
  bool drain(Deadline deadline) override;

 private:
  class Message;
  struct Batch;

  void all_reduce(const Operation& op, Call& call) override;
  void reduce(const Operation& op, Call& call) override;
  void broadcast(const Operation& op, Call& call) override;
  void all_gather(const Operation& op, Call& call) override;
  void gather(const Operation& op, Call& call) override;
  void scatter(const Operation& op, Call& call) override;
  void reduce_scatter(const Operation& op, Call& call) override;
  void all_to_all(const Operation& op, Call& call) override;
  void barrier(const Operation& op, Call& call) override;
  void send(const Operation& op, Call& call) override;
  int recv(const Operation& op, Call& call) override;

  /// What has been issued to c10d, and what is left to do with the results.
  struct Issued {
    std::vector<WorkPtr> works;
    std::function<void()> after{};
  };
  using Issue = std::function<Issued(Operands& operands)>;

  /// Issues an operation and completes it: on the host by waiting, on a stream by ordering the stream behind it.
  void run(const Operation& op, Call& call, const Issue& issue);
  void run_on_host(const Operation& op, Call& call, const Issue& issue);
  void run_on_stream(const Operation& op, Call& call, const Issue& issue);
  int perform_batch(const Operation& op, Call& call);
  /// Returns when the work has ended; throws its error, or gives up.
  void await(c10d::Work& work, const Operation& op, Call& call);
  void poll(c10d::Work& work, Call& call);
  [[noreturn]] void give_up(const Call& call);
  /// Ends the group because of c10d's exception that is being handled, and throws it as one of Cohort's.
  [[noreturn]] void fail(std::string_view operation, Call& call);
  /// Calls a function that calls c10d, and fails if it throws.
  template <class Function>
  auto in_c10d(const Operation& op, Call& call, const Function& function) {
    try {
      return function();
    } catch (const std::exception&) {
      fail(describe(op, call), call);
    }
  }
  /// "all_reduce #3 (sum of f32)"
  static std::string describe(const Operation& op, const Call& call);

  void all_gather_uneven(const Operation& op, Call& call);
  /// A reduce_scatter by an all_reduce.
  void reduce_and_cut(const Operation& op, const C10dReduction& how, Call& call);
  C10dReduction reduction(const Operation& op) const;
  /// The owners of the memory; null if it is borrowed, or if they are not known.
  std::shared_ptr<const Operands::Owners> owners_of(const Operation& op, const Call& call) const;
  void check_message(const Operation& op, const Call& call) const;
  [[noreturn]] void refuse_message(const Operation& op, std::string_view what) const;
  std::unique_ptr<Message> post_send(const Operation& op, Call& call);
  std::unique_ptr<Message> post_recv(const Operation& op, Call& call);
  void complete(Message& message, int peer, Call& call);

  /// Receives that nobody waits for, by peer, tag and size.
  using MessageKey = std::tuple<int, int, std::size_t>;
  using PostedPtr = std::shared_ptr<PostedMessage>;
  PostedPtr take_over(const MessageKey& key);

  const C10dGroupPtr group_;
  const at::Device device_;
  const bool is_nccl_;
  const bool can_reduce_scatter_;
  const bool polls_;           ///< waits by asking, since wait() does not keep its timeout, or does not block
  const bool polls_messages_;  ///< a message can be asked whether it is done
  const std::shared_ptr<GroupStatus> status_;
  const std::shared_ptr<KnownStreams> streams_;
  EnqueuedOperations enqueued_;
  const std::shared_ptr<MessageProgress> progress_ = std::make_shared<MessageProgress>();
  std::mutex mutex_;
  std::map<MessageKey, std::deque<PostedPtr>> left_receives_;  ///< under mutex_
};

}  // namespace cohort
