// SPDX-License-Identifier: BSD-3-Clause
//
// A communication hook replaces what DistributedDataParallel does with a bucket of gradients: it gets the bucket as it
// is (not divided by the number of ranks) and gives back what is to be in it, once that is there.
//
//   ddp.register_comm_hook([pg](cohort::GradBucket& bucket) {
//     auto halves = bucket.buffer().to(at::kHalf).div_(pg->size());
//     return cohort::reduced(*pg, halves).then([whole = bucket.buffer()](at::Tensor sum) { return whole.copy_(sum); });
//   });
//
// Hooks of one's own are functions, or objects with operator(); hooks.h has the usual ones. A hook is called once for
// each bucket of each backward, in the same order on all ranks, on a thread of autograd; it should not block, nor call
// the wrapper whose bucket it has. Its future is awaited for the group's timeout. What it throws comes out of
// backward().
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace cohort {

class COHORT_API GradBucket {
 public:
  GradBucket(std::size_t index, std::size_t count, at::Tensor buffer, std::vector<at::Tensor> gradients,
             std::vector<at::Tensor> parameters)
      : index_(index),
        count_(count),
        buffer_(std::move(buffer)),
        gradients_(std::move(gradients)),
        parameters_(std::move(parameters)) {}

  /// The place in the order in which buckets are reduced; stable once buckets were rebuilt.
  std::size_t index() const noexcept { return index_; }
  bool is_last() const noexcept { return index_ + 1 == count_; }
  /// All gradients in one row; of a sparse gradient the sparse tensor itself.
  const at::Tensor& buffer() const noexcept { return buffer_; }
  /// For hooks around other hooks: what the inner one gets to see. With as many elements as before, gradients() are
  /// the parts of the new buffer from here on.
  void set_buffer(at::Tensor buffer);
  /// The buffer's parts, shaped like the parameters.
  const std::vector<at::Tensor>& gradients() const noexcept { return gradients_; }
  const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

 private:
  std::size_t index_;
  std::size_t count_;
  at::Tensor buffer_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> parameters_;
};

/// The tensor in the future has the buffer's number of elements; it may be the buffer itself.
using CommHook = std::function<TensorFuture(GradBucket&)>;

/// A hook whose name the log shows: CommHook hook = NamedHook{"mine", function}.
struct COHORT_API NamedHook {
  std::string name{};
  CommHook hook{};

  TensorFuture operator()(GradBucket& bucket) const { return hook(bucket); }
};

/// "custom" for a hook that has no name.
inline std::string hook_name(const CommHook& hook) {
  const auto* const named = hook.target<NamedHook>();
  return named == nullptr ? "custom" : named->name;
}

}  // namespace cohort
