// SPDX-License-Identifier: BSD-3-Clause
#include "torch/devices/host_devices.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cohort/torch/tensor.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace cohort::test {

namespace {

constexpr auto type = c10::DeviceType::PrivateUse1;
constexpr auto key = c10::DispatchKey::PrivateUse1;

/// libtorch's, and std::optional since it has no own.
template <class T>
using Optional = decltype(std::declval<c10::IValue>().toOptional<T>());

thread_local c10::DeviceIndex current = 0;

// Later versions of libtorch have further functions, and allocate() is not const there: hence no `override` here.
class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const { return make(bytes); }
  c10::DataPtr allocate(std::size_t bytes) { return make(bytes); }
  c10::DeleterFnPtr raw_deleter() const { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }

 private:
  static c10::DataPtr make(std::size_t bytes) {
    void* const data = bytes == 0 ? nullptr : std::calloc(bytes, 1);
    return {data, data, &std::free, c10::Device(type, current)};
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return cohort::test::type; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {type(), std::exchange(current, device.index())};
  }
  c10::Device getDevice() const override { return {type(), current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return host_devices; }
  // Everything has ended when it returns, so there is nothing to wait for.
  void record(void** /*event*/, const c10::Stream& /*stream*/, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {}
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  void destroyEvent(void* /*event*/, const c10::DeviceIndex /*device*/) const noexcept override {}
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const c10::Stream& /*stream*/) const override {}
  void recordDataPtrOnStream(const c10::DataPtr& /*data*/, const c10::Stream& /*stream*/) const override {}
};

Memory& memory() {
  static Memory of_devices;
  return of_devices;
}

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == type;
}

/// The same memory as a tensor of the host; without elements, one that can grow.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!is_on_device(tensor)) return tensor;
  if (tensor.numel() == 0) return at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

at::Tensor empty(at::IntArrayRef sizes, Optional<at::ScalarType> dtype, Optional<at::Layout> /*layout*/,
                 Optional<at::Device> device, Optional<bool> /*pinned*/, Optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device ? *device : host_device(current));
  return at::Tensor(
      at::detail::empty_generic(sizes, &memory(), c10::DispatchKeySet(key), dtype.value_or(at::kFloat), format));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, Optional<at::ScalarType> dtype,
                         Optional<at::Layout> /*layout*/, Optional<at::Device> device, Optional<bool> /*pinned*/) {
  const c10::DeviceGuard guard(device ? *device : host_device(current));
  return at::Tensor(at::detail::empty_strided_generic(sizes, strides, &memory(), c10::DispatchKeySet(key),
                                                      dtype.value_or(at::kFloat)));
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool /*non_blocking*/) {
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor on_device(const at::Tensor& result, at::Device device) {
  return at::empty_strided(result.sizes(), result.strides(), result.options().device(device)).copy_(result);
}

/// An operator has resized its output.
void adopt_size(const at::Tensor& tensor, const at::Tensor& result) {
  const auto copy = on_device(result, tensor.device());
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(copy.storage());
  impl->set_sizes_and_strides(copy.sizes(), copy.strides());
}

/// Any other operator: on the host, on the same memory. What it returns is copied to the device of its arguments, which
/// must be one.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto arguments = schema.arguments().size();
  const auto first = stack->size() - arguments;
  const std::vector<c10::IValue> given(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  Optional<at::Device> device;
  const auto alias = [&](const at::Tensor& tensor) {
    if (is_on_device(tensor)) {
      TORCH_CHECK(!device || *device == tensor.device(), schema.name(), ": tensors on several devices");
      device = tensor.device();
    }
    return on_host(tensor);
  };
  for (std::size_t i = 0; i < arguments; ++i) {
    auto& value = (*stack)[first + i];
    if (value.isTensor()) {
      value = alias(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorVector()) list.push_back(alias(each));
      value = list;
    } else if (value.isDevice()) {
      device = value.toDevice();
      value = at::Device(at::kCPU);
    }
  }
  op.callBoxed(stack);
  const auto returns = schema.returns().size();
  for (std::size_t i = 0; i < returns; ++i) {
    auto& value = (*stack)[stack->size() - returns + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const auto* const info = schema.returns()[i].alias_info();
    if (info == nullptr) {
      value = on_device(value.toTensor(), *device);
      continue;
    }
    for (std::size_t each = 0; each < arguments; ++each) {
      const auto* const of_argument = schema.arguments()[each].alias_info();
      if (of_argument == nullptr || !(*of_argument == *info)) continue;
      if (given[each].toTensor().sizes() != value.toTensor().sizes())
        adopt_size(given[each].toTensor(), value.toTensor());
      value = given[each];
      break;
    }
  }
}

}  // namespace

at::Device host_device(int index) {
  return {type, static_cast<c10::DeviceIndex>(index)};
}

void register_host_devices() {
  static const c10::impl::DeviceGuardImplRegistrar guard(type, new Guard);  // libtorch never frees it
  static const bool has_memory = [] {
    c10::SetAllocator(type, &memory());
    return true;
  }();
  static_cast<void>(has_memory);
  static torch::Library operators(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  static torch::Library all(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  static const bool are_registered = [] {
    operators.impl("empty.memory_format", TORCH_FN(empty));
    operators.impl("empty_strided", TORCH_FN(empty_strided));
    operators.impl("copy_", TORCH_FN(copy_));
    operators.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
    operators.impl("view", TORCH_FN(at::native::view));
    operators.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
    return true;
  }();
  static_cast<void>(are_registered);
  use_as_host_memory(type);
}

}  // namespace cohort::test
