// SPDX-License-Identifier: BSD-3-Clause
//
// The result of a collective that is still in flight, as a tensor: it has the result's sizes, and the first use of its
// elements waits. Views of it do not wait; they are such tensors as well, over the same result.
//
//   at::Tensor sum = as_async(ops::all_reduce(x, "sum", id), ResultMemory::fresh);
//   sum.view(-1);                      // does not wait
//   sum + 1;                           // waits
//
// Its key set contains Fake, so every operator on it arrives in the fallback (torch/dispatch/fallback.h) below
// autograd, which puts the plain tensor in its place. Code that reads memory without an operator (data_ptr(),
// accessors, printing) asks the TensorImpl for its storage, which waits too.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <cohort/work.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <typeinfo>
#include <utility>
#include <vector>

#include "torch/dispatch/fallback.h"

namespace cohort::functional {

enum class ResultMemory : std::uint8_t {
  fresh,      ///< made by the operator: if nobody waits for it, nobody can see it
  of_user,    ///< written in place: the user may still wait for the tensor itself
  of_source,  ///< made from the result of another one, which has the Works
};

/// Shared by all tensors over one result. Thread-safe.
class AsyncResult {
 public:
  AsyncResult(at::Tensor whole, std::vector<Work> works, ResultMemory memory)
      : whole_(std::move(whole)), works_(std::move(works)), memory_(memory) {}
  /// A tensor that `fill` writes, on the thread that waits first, after `source` has ended.
  AsyncResult(std::shared_ptr<AsyncResult> source, std::function<void()> fill)
      : memory_(ResultMemory::of_source), source_(std::move(source)), fill_(std::move(fill)) {}
  ~AsyncResult();
  AsyncResult(const AsyncResult&) = delete;
  AsyncResult& operator=(const AsyncResult&) = delete;

  bool is_done() const noexcept { return is_done_.load(std::memory_order_acquire); }
  bool has_succeeded() const noexcept { return is_done() && !error_; }
  /// The first call waits, by the operator wait_tensor. If the collective has failed, every call throws its error.
  void wait();

 private:
  void wait_for_all();

  const at::Tensor whole_;
  // Those of the registry when the result was made. Whoever waits for another tensor over the same storage takes them
  // from there, with their errors.
  std::vector<Work> works_;
  const ResultMemory memory_;
  std::shared_ptr<AsyncResult> source_;
  std::function<void()> fill_;
  std::atomic<bool> is_done_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

class AsyncTensorImpl final : public c10::TensorImpl {
 public:
  /// `plain` is the result or a view of it, without history.
  AsyncTensorImpl(at::Tensor plain, std::shared_ptr<AsyncResult> result);

  const at::Tensor& plain_in_flight() const noexcept { return plain_; }
  const std::shared_ptr<AsyncResult>& result() const noexcept { return result_; }
  const at::Tensor& wait() const;
  /// Whether somebody has waited, without an error.
  bool is_done() const noexcept { return result_ != nullptr && result_->has_succeeded(); }
  /// Takes over the sizes of the plain tensor, after an operator such as resize_ has changed them.
  void refresh();

  bool has_storage() const override;
  const c10::Storage& storage() const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                              bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                              bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) override;

 private:
  const char* tensorimpl_type_name() const override { return "cohort::AsyncTensor"; }
  /// Waits and then shows the memory to code that reads it without an operator.
  void expose_storage() const;

  at::Tensor plain_;                     // undefined after set_data() with a plain tensor: this one is plain then, too
  std::shared_ptr<AsyncResult> result_;  // null likewise
  mutable std::mutex storage_mutex_;
};

inline bool is_async_impl(const c10::TensorImpl& impl) noexcept {
  return impl.key_set().has(wrapper_key) && typeid(impl) == typeid(AsyncTensorImpl);
}
/// Null if the tensor is not one of these.
inline AsyncTensorImpl* find_async(const at::Tensor& tensor) noexcept {
  auto* const impl = tensor.unsafeGetTensorImpl();
  return is_async_impl(*impl) ? static_cast<AsyncTensorImpl*>(impl) : nullptr;
}

/// A tensor in flight for the result of an operator; the result itself if nothing is in flight on its storage.
at::Tensor as_async(const at::Tensor& result, ResultMemory memory);

/// `result`, which `fill` makes from the plain `source`: at once, or, if `source` is in flight, at the first use of the
/// tensor that is returned.
at::Tensor filled_from(const at::Tensor& source, const at::Tensor& result, std::function<void(const at::Tensor&)> fill);
/// A contiguous copy of `source`, made at once or likewise.
at::Tensor copy_of(const at::Tensor& source);

/// The plain tensor if the collective is known to have ended: operators on it do not pass through the fallback any
/// more.
inline const at::Tensor& plain_if_done(const at::Tensor& tensor) noexcept {
  const auto* const async = find_async(tensor);
  return async != nullptr && async->is_done() ? async->plain_in_flight() : tensor;
}

}  // namespace cohort::functional
