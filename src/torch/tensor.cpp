// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/torch/tensor.h>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cohort/error.h>
#include <torch/version.h>

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "torch/compat/features.h"
#include "torch/compat/stream_handle.h"
#include "torch/written.h"

namespace cohort {

DType dtype_from(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kChar:
      return DType::i8;
    case at::kByte:
      return DType::u8;
    case at::kShort:
      return DType::i16;
    case at::kInt:
      return DType::i32;
    case at::kLong:
      return DType::i64;
    case at::kBool:
      return DType::boolean;
    case at::kComplexFloat:
      return DType::complex64;
    case at::kComplexDouble:
      return DType::complex128;
#if COHORT_TORCH_HAS_NARROW_FLOATS_AND_WIDE_UNSIGNED
    case at::kUInt16:
      return DType::u16;
    case at::kUInt32:
      return DType::u32;
    case at::kUInt64:
      return DType::u64;
#endif
    default:
      throw TypeError(fmt::format("a tensor of {}: groups do not know this type", c10::toString(type)));
  }
}

at::ScalarType scalar_type_from(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f32:
      return at::kFloat;
    case DType::f64:
      return at::kDouble;
    case DType::i8:
      return at::kChar;
    case DType::u8:
      return at::kByte;
    case DType::i16:
      return at::kShort;
    case DType::i32:
      return at::kInt;
    case DType::i64:
      return at::kLong;
    case DType::boolean:
      return at::kBool;
    case DType::complex64:
      return at::kComplexFloat;
    case DType::complex128:
      return at::kComplexDouble;
    case DType::u16:
    case DType::u32:
    case DType::u64:
#if COHORT_TORCH_HAS_NARROW_FLOATS_AND_WIDE_UNSIGNED
      return dtype == DType::u16 ? at::kUInt16 : dtype == DType::u32 ? at::kUInt32 : at::kUInt64;
#endif
    case DType::raw:
      break;
  }
  throw TypeError(fmt::format("tensors of libtorch {} have no elements of type {}", TORCH_VERSION, to_string(dtype)));
}

namespace {
/// Process-wide: a bit for each type.
std::atomic<std::uint64_t> host_memory_types{std::uint64_t{1} << static_cast<unsigned>(at::kCPU)};
}  // namespace

void use_as_host_memory(c10::DeviceType type) {
  if (type == at::kCUDA || type == at::kMeta) {
    throw ValueError(
        fmt::format("use_as_host_memory: the host does not read memory of type {}", c10::DeviceTypeName(type, true)));
  }
  host_memory_types |= std::uint64_t{1} << static_cast<unsigned>(type);
}

Device device_from(at::Device device) {
  if ((host_memory_types.load(std::memory_order_relaxed) >> static_cast<unsigned>(device.type()) & 1U) != 0) {
    return Device(DeviceType::cpu);
  }
  if (device.is_cuda()) return Device(DeviceType::cuda, device.index());
  throw ValueError(fmt::format("a tensor on {}: groups work on cpu and cuda", device.str()));
}

namespace {

Buffer memory_of(const at::Tensor& tensor) {
  if (!tensor.defined()) throw ValueError("an undefined tensor");
  if (tensor.layout() != at::kStrided) throw ValueError("a sparse tensor: see sparse_all_reduce");
  Buffer buffer(tensor.data_ptr(), dtype_from(tensor.scalar_type()), Dims(tensor.sizes()), Dims(tensor.strides()),
                device_from(tensor.device()), std::make_shared<at::Tensor>(tensor));
  buffer.use_in_memory_order(true);
  return buffer;
}

}  // namespace

Buffer buffer_of(const at::Tensor& tensor) {
  auto memory = memory_of(tensor);
  mark_written(tensor);
  return memory;
}

ConstBuffer const_buffer_of(const at::Tensor& tensor) {
  return memory_of(tensor);
}

at::Tensor empty_in_group(ProcessGroup& group, at::IntArrayRef sizes, const at::TensorOptions& options) {
  std::size_t bytes = options.dtype().itemsize();
  for (const auto size : sizes) {
    if (size < 0) throw ValueError(fmt::format("empty_in_group: a size of {}", size));
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes)) {
      throw ValueError("empty_in_group: the tensor is too large");
    }
  }
  const auto device = options.device();
  const bool is_of_group = device.is_cpu() || device.is_cuda();  // of libtorch's own, which it knows how to wrap
  if (bytes == 0 || !is_of_group || !group.capabilities(device_from(device)).group_memory)
    return at::empty(sizes, options);
  const auto memory = std::make_shared<GroupMemory>(group.allocate(bytes));
  return at::from_blob(
      memory->data(), sizes, [memory](void* /*data*/) {}, options);
}

void* current_stream(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return nullptr;
  return handle_of(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(tensor.device()));
}

TensorFuture completed_future(at::Tensor tensor) {
  Promise<at::Tensor> promise;
  promise.set_value(std::move(tensor));
  return promise.future();
}

namespace {

TensorFuture when_done(const Work& work, const at::Tensor& result) {
  if (!result.is_cuda()) {
    return work.then([result](const std::vector<Buffer>& /*outputs*/) { return result; });
  }
  work.wait();
  return completed_future(result);
}

}  // namespace

TensorFuture all_reduce_async(ProcessGroup& group, const at::Tensor& tensor, ReduceOp op) {
  return when_done(group.all_reduce(buffer_of(tensor), {.op = op, .async_op = true, .stream = current_stream(tensor)}),
                   tensor);
}

TensorFuture all_gather_async(ProcessGroup& group, const at::Tensor& tensor) {
  auto sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  const auto mine = tensor.contiguous();
  auto all = at::empty(sizes, mine.options());
  return when_done(
      group.all_gather(buffer_of(all), const_buffer_of(mine), {.async_op = true, .stream = current_stream(mine)}), all);
}

}  // namespace cohort
