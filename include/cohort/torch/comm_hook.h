// SPDX-License-Identifier: BSD-3-Clause
//
// A communication hook replaces the reduction of a bucket of gradients in DistributedDataParallel. It gets the bucket
// undivided by the number of ranks and returns a future of what is to be in it.
//
//   ddp.register_comm_hook([pg](cohort::GradBucket& bucket) {
//     auto halves = bucket.buffer().to(at::kHalf).div_(pg->size());
//     auto sum = cohort::all_reduce_async(*pg, halves);
//     return sum.then([whole = bucket.buffer()](at::Tensor halves_sum) { return whole.copy_(halves_sum); });
//   });
//
// A hook is a function or an object with operator(); hooks.h has the usual ones. It is called once for each bucket of
// each backward, in the same order on all ranks, on a thread of autograd. It should not block, and it must not call the
// wrapper whose bucket it has. Its future is waited for within the group's timeout. An exception that it throws leaves
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

  /// The bucket's place in the order in which buckets are reduced; stable once the buckets were rebuilt.
  std::size_t index() const noexcept { return index_; }
  bool is_last() const noexcept { return index_ + 1 == count_; }
  /// All gradients as one flat tensor; for a sparse gradient the sparse tensor itself.
  const at::Tensor& buffer() const noexcept { return buffer_; }
  /// For hooks around other hooks: replaces the buffer that the inner hook sees. If it has as many elements as before,
  /// gradients() become the parts of the new buffer.
  void set_buffer(at::Tensor buffer);
  /// The parts of the buffer, in the shapes of the parameters.
  const std::vector<at::Tensor>& gradients() const noexcept { return gradients_; }
  const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

 private:
  std::size_t index_;
  std::size_t count_;
  at::Tensor buffer_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> parameters_;
};

/// The future's tensor has as many elements as the buffer; it may be the buffer itself.
using CommHook = std::function<TensorFuture(GradBucket&)>;

/// A hook with a name for the logging data: CommHook hook = NamedHook{"mine", function}.
struct COHORT_API NamedHook {
  std::string name{};
  CommHook hook{};

  TensorFuture operator()(GradBucket& bucket) const { return hook(bucket); }
};

/// The name of a NamedHook; "custom" for any other hook.
inline std::string hook_name(const CommHook& hook) {
  const auto* const named = hook.target<NamedHook>();
  return named == nullptr ? "custom" : named->name;
}

}  // namespace cohort
