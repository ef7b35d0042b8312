// SPDX-License-Identifier: BSD-3-Clause
//
// All gradients of a model in buckets: assigns parameters to buckets, fills them as gradients arrive, hands the results
// back to the parameters, and rebuilds the buckets once the order in which gradients arrive is known.
//
// A gradient that autograd has put elsewhere is copied into its bucket once; one that lies there already is not
// touched. With gradient_as_bucket_view the parameters' gradients are the buckets' memory, and nothing is copied
// afterwards.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/process_group.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "torch/ddp/bucket.h"
#include "torch/ddp/bucket_assignment.h"
#include "torch/ddp/parameters.h"
#include "torch/ddp/usage_tracker.h"

namespace cohort::ddp {

struct BucketOptions {
  std::vector<std::size_t> initial_limits{unlimited};  ///< in bytes, until the order of gradients is known
  std::vector<std::size_t> rebuilt_limits{unlimited};  ///< in bytes, from then on
  bool small_bucket_is_last = false;  ///< rebuilt_limits are for the buckets from the last one backwards
  bool gradient_as_bucket_view = true;
  bool batches_copies = false;  ///< a bucket's gradients are copied and divided together once all of them are there
  bool may_use_group_memory = true;
};

/// Not thread-safe: the reducer's mutex guards it.
class BucketSet {
 public:
  /// `parameters` must outlive the buckets.
  BucketSet(const Parameters& parameters, BucketOptions options, ProcessGroup& group);

  std::size_t size() const { return buckets_.size(); }
  Bucket& operator[](std::size_t index) { return buckets_[index]; }
  const Bucket& operator[](std::size_t index) const { return buckets_[index]; }

  /// Empties all buckets for the next backward.
  void clear();
  bool is_filled(std::size_t parameter) const { return is_filled_[parameter]; }
  /// The parameters whose gradients have not arrived yet.
  std::vector<std::size_t> unfilled() const;
  /// Whether the last backward was one with create_graph: what is computed from its gradients is not averaged.
  bool has_graph() const { return has_graph_; }
  /// Puts the parameter's gradient, or zeros if it has none, into its bucket, divided by `divisor` unless the reduction
  /// does that. Returns the bucket's index.
  std::size_t fill(std::size_t parameter, double divisor, const UsageTracker& usage);
  /// Makes the reduced values the gradients of the bucket's parameters.
  void hand_out(Bucket& bucket, const at::Tensor& reduced, UsageTracker& usage) const;
  /// Gives parameters that no rank used the gradients they had before; in a skipped bucket all that this rank did not
  /// use.
  static void restore_unused(Bucket& bucket, UsageTracker& usage);

  /// Notes that the parameter's gradient was the next to arrive.
  void record_order(std::size_t parameter) { order_.push_back(parameter); }
  bool has_order() const { return order_.size() == parameters_.size(); }
  bool has_rebuilt() const { return has_rebuilt_; }
  /// How often buckets were made, in new memory each time.
  std::uint64_t builds() const { return builds_; }
  /// Collective. Rebuilds the buckets in the order that was recorded by the first rank that has one, which is rank 0
  /// unless that has no input.
  void rebuild(ProcessGroup& group);
  /// Moves the buckets into memory of another group and forgets the recorded order: they will be rebuilt.
  void move_to(ProcessGroup& group);
  void forget_order();

  /// A dense bucket of zeros like the one at `index`, or an empty sparse one: what a rank without input contributes.
  Bucket make_zeros(std::size_t index, ProcessGroup& group) const;

 private:
  struct Place {
    std::size_t bucket = 0;
    std::size_t slot = 0;
  };

  std::vector<TensorInfo> infos() const;
  std::vector<AssignedBucket> assign_in_recorded_order() const;
  void make(std::vector<AssignedBucket> assigned, ProcessGroup& group);
  void adopt_gradients(const Bucket& bucket) const;
  void fill_dense(Bucket& bucket, std::size_t slot, double divisor, bool keeps_old);
  void fill_sparse(Bucket& bucket, double divisor) const;
  void copy_together(Bucket& bucket, double divisor) const;

  const Parameters& parameters_;
  const BucketOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  ///< by parameter
  std::vector<bool> is_filled_;
  std::vector<std::size_t> order_;
  bool has_rebuilt_ = false;
  bool has_warned_strides_ = false;
  bool has_graph_ = false;
  std::uint64_t created_graphs_ = 0;
  std::uint64_t builds_ = 0;
};

}  // namespace cohort::ddp
