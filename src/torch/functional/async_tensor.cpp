// SPDX-License-Identifier: BSD-3-Clause
#include "torch/functional/async_tensor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/tensor.h>

#include <algorithm>
#include <utility>

#include "torch/dispatch/fallback.h"
#include "torch/functional/operators.h"
#include "torch/functional/view_operators.h"
#include "torch/functional/work_registry.h"

namespace cohort::functional {

AsyncResult::~AsyncResult() {
  if (memory_ == ResultMemory::fresh && !is_done()) WorkRegistry::instance().forget(whole_);
}

void AsyncResult::wait_for_all() {
  if (source_ != nullptr) {
    source_->wait();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    fill_();
    return;
  }
  ops::wait_tensor(whole_);
  auto* const stream = current_stream(whole_);
  for (const auto& work : works_) work.wait_on(stream);
}

void AsyncResult::wait() {
  if (has_succeeded()) return;
  const std::lock_guard lock(mutex_);
  if (!is_done()) {
    try {
      wait_for_all();
    } catch (...) {
      error_ = std::current_exception();
    }
    works_.clear();
    fill_ = nullptr;
    source_ = nullptr;
    is_done_.store(true, std::memory_order_release);
  }
  if (error_) std::rethrow_exception(error_);
}

namespace {

/// An inference tensor if the plain one is, whatever the mode now: in inference mode views of normal tensors are
/// normal.
c10::intrusive_ptr<AsyncTensorImpl> make_async(const at::Tensor& plain, const std::shared_ptr<AsyncResult>& result) {
  const c10::InferenceMode mode(plain.is_inference());
  return c10::make_intrusive<AsyncTensorImpl>(plain, result);
}

at::Tensor view_in_flight(const at::Tensor& plain, const std::shared_ptr<AsyncResult>& result) {
  return at::Tensor(make_async(plain, result));
}

}  // namespace

AsyncTensorImpl::AsyncTensorImpl(at::Tensor plain, std::shared_ptr<AsyncResult> result)
    : c10::TensorImpl(
          c10::DispatchKeySet({plain.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU, wrapper_key}),
          plain.dtype(), plain.device()),
      plain_(std::move(plain)),
      result_(std::move(result)) {
  set_sizes_and_strides(plain_.sizes(), plain_.strides(), plain_.storage_offset());
  // One counter: whatever writes through the plain tensor is seen by autograd, which knows this one.
  if (!plain_.is_inference()) set_version_counter(plain_.unsafeGetTensorImpl()->version_counter());
}

const at::Tensor& AsyncTensorImpl::wait() const {
  result_->wait();
  return plain_;
}

void AsyncTensorImpl::refresh() {
  set_sizes_and_strides(plain_.sizes(), plain_.strides(), plain_.storage_offset());
  const std::lock_guard lock(storage_mutex_);
  if (storage_) storage_ = plain_.storage();
}

void AsyncTensorImpl::expose_storage() const {
  if (result_ == nullptr) return;
  result_->wait();
  const std::lock_guard lock(storage_mutex_);
  if (!storage_) const_cast<AsyncTensorImpl*>(this)->storage_ = plain_.storage();
}

bool AsyncTensorImpl::has_storage() const {
  expose_storage();
  return c10::TensorImpl::has_storage();
}

const c10::Storage& AsyncTensorImpl::storage() const {
  expose_storage();
  return c10::TensorImpl::storage();
}

c10::intrusive_ptr<c10::TensorImpl> AsyncTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                             bool allow_tensor_metadata_change) const {
  auto copy = make_async(plain_, result_);
  copy_tensor_metadata(this, copy.get(), version, allow_tensor_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> AsyncTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                             bool allow_tensor_metadata_change) const {
  auto copy = make_async(plain_, result_);
  copy_tensor_metadata(this, copy.get(), std::move(version), allow_tensor_metadata_change);
  return copy;
}

void AsyncTensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) {
  const bool is_async = is_async_impl(*other);
  copy_tensor_metadata(other.get(), this, version_counter(), allow_tensor_metadata_change());
  plain_ = is_async ? static_cast<const AsyncTensorImpl&>(*other).plain_ : at::Tensor();
  result_ = is_async ? static_cast<const AsyncTensorImpl&>(*other).result_ : nullptr;
}

at::Tensor as_async(const at::Tensor& result, ResultMemory memory) {
  // A recording has the wait behind the collective; a replay waits as late as the data allow.
  if (is_capturing()) return ops::wait_tensor(result);
  auto works = WorkRegistry::instance().works_of(result);
  if (works.empty()) return result;
  return view_in_flight(result, std::make_shared<AsyncResult>(result, std::move(works), memory));
}

at::Tensor filled_from(const at::Tensor& source, const at::Tensor& result,
                       std::function<void(const at::Tensor&)> fill) {
  const auto* const async = find_async(source);
  if (async == nullptr || async->is_done()) {
    fill(plain_if_done(source));
    return result;
  }
  auto filled = std::make_shared<AsyncResult>(
      async->result(), [fill = std::move(fill), plain = async->plain_in_flight()] { fill(plain); });
  return view_in_flight(result, filled);
}

at::Tensor copy_of(const at::Tensor& source) {
  const auto copy = at::empty(source.sizes(), source.options());
  return filled_from(source, copy, [copy](const at::Tensor& plain) { copy.copy_(plain); });
}

namespace {

/// Waits for the tensors in flight among the operator's arguments, also those in lists, and replaces them with plain
/// tensors on the stack. Destroyed after the operator has run.
class AwaitedArguments {
 public:
  AwaitedArguments(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  ~AwaitedArguments();
  AwaitedArguments(const AwaitedArguments&) = delete;
  AwaitedArguments& operator=(const AwaitedArguments&) = delete;

 private:
  std::vector<at::Tensor> written_;  // what the operator may write
};

bool run_view(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!is_view_operator(op)) return false;
  auto& self = (*stack)[stack->size() - op.schema().arguments().size()];
  const auto* const impl = self.isTensor() ? find_async(self.toTensor()) : nullptr;
  if (impl == nullptr || impl->result()->is_done()) return false;
  const auto result = impl->result();
  self = at::Tensor(impl->plain_in_flight());
  op.redispatchBoxed(keys, stack);
  auto& view = stack->back();
  if (view.isTensor()) {
    view = view_in_flight(view.toTensor(), result);
  } else {
    auto views = view.toTensorVector();
    for (auto& each : views) each = view_in_flight(each, result);
    view = c10::List<at::Tensor>(views);
  }
  return true;
}

AwaitedArguments::AwaitedArguments(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto first = stack->size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    const bool is_written = alias != nullptr && alias->isWrite();
    const auto awaited = [&](const c10::IValue& value) -> c10::IValue {
      const auto* const impl = value.isTensor() ? find_async(value.toTensor()) : nullptr;
      if (impl == nullptr) return value;
      if (is_written) written_.push_back(value.toTensor());
      return impl->wait();
    };
    auto& argument = (*stack)[first + i];
    if (argument.isTensor()) {
      argument = awaited(argument);
    } else if (argument.isList()) {
      const auto values = argument.toListRef();
      if (std::none_of(values.begin(), values.end(),
                       [](const auto& each) { return each.isTensor() && find_async(each.toTensor()) != nullptr; })) {
        continue;
      }
      // A list of its own, since the caller's is shared.
      auto plain = argument.toList().copy();
      for (std::size_t k = 0; k < plain.size(); ++k) plain.set(k, awaited(plain.get(k)));
      argument = plain;
    }
  }
}

AwaitedArguments::~AwaitedArguments() {
  for (const auto& tensor : written_) find_async(tensor)->refresh();
}

void run_awaited(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack, RunOperator run) {
  const AwaitedArguments awaited(op, stack);
  run(op, keys, stack);
}

const TensorHandler async_tensor_handler(TensorsInFlight{
    .impl = &typeid(AsyncTensorImpl), .run_view = &run_view, .run_awaited = &run_awaited});

}  // namespace

}  // namespace cohort::functional
