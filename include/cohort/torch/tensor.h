// SPDX-License-Identifier: BSD-3-Clause
//
// Tensors in the operations of process groups:
//
//   at::Tensor x = torch::ones({1024});
//   pg->all_reduce(x);                                                  // a tensor is a Buffer
//   auto work = pg->all_reduce(x, {.async_op = true, .stream = cohort::current_stream(x)});
//   cohort::TensorFuture sum = cohort::all_reduce_async(*pg, x);        // for chains of steps, on any device
//   pg->all_reduce(x.view(-1));                                         // a temporary that shares x's memory
//   pg->all_reduce_coalesced({x.narrow(0, 0, 10), x.narrow(0, 10, 20)});
//   at::Tensor fast = cohort::empty_in_group(*pg, {1024, 1024});       // collectives on it copy nothing
//
// A tensor is a handle, so a temporary will do as long as it is a view: the result of x.contiguous() or x.to(...) that
// is a copy is lost with the copy.
//
// The buffer keeps the tensor's storage alive until the operation has ended.
//
// The elements of a tensor that is dense but not row-major (channels last, a transposed matrix) are used in memory
// order, without a copy, by operations that use tensors as a whole. Its sizes and strides must therefore be the same on
// all ranks, and in all tensors of one call: otherwise the call is a MismatchError, on backends that compare what ranks
// call ("Disagreements" in docs/backends.md), or a ValueError. Operations that cut a tensor into pieces take row-major
// tensors only. Tensors with gaps or overlaps are refused; tensor.contiguous() makes a row-major copy. Sparse tensors
// are refused as well; for these there is sparse_all_reduce.
//
// A tensor that an operation may write (every Buffer, on all ranks, a broadcast's root included) has its autograd
// version raised when the operation is called, as by an in-place function of its own. A backward that has saved the
// tensor before is then an error of libtorch ("modified by an inplace operation") and not a wrong gradient. Tensors
// that are only read (ConstBuffer) keep their version.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <cohort/buffer.h>
#include <cohort/export.h>
#include <cohort/future.h>
#include <cohort/process_group.h>

namespace cohort {

/// A TypeError for types that groups do not support (quantised types, ...).
COHORT_API DType dtype_from(at::ScalarType type);
COHORT_API at::ScalarType scalar_type_from(DType dtype);
COHORT_API Device device_from(at::Device device);
/// From now on groups take tensors on devices of this type, PrivateUse1 for example, for host memory: for devices of a
/// program's own whose memory the host reads and writes in place. Nothing that a device still does is waited for.
COHORT_API void use_as_host_memory(c10::DeviceType type);

/// The tensor's memory, to be written: raises the tensor's version, at this call and not at those that use the buffer.
COHORT_API Buffer buffer_of(const at::Tensor& tensor);
/// The tensor's memory, to be read only.
COHORT_API ConstBuffer const_buffer_of(const at::Tensor& tensor);

template <>
struct BufferTraits<at::Tensor> {
  static constexpr bool is_handle = true;
  static Buffer buffer(const at::Tensor& tensor) { return buffer_of(tensor); }
  static ConstBuffer const_buffer(const at::Tensor& tensor) { return const_buffer_of(tensor); }
};

/// A tensor in memory of the group (memory.h), zeroed; collectives on it copy nothing. An ordinary tensor, not zeroed,
/// where the group has no such memory for the device or the tensor has no elements. Not a collective call.
COHORT_API at::Tensor empty_in_group(ProcessGroup& group, at::IntArrayRef sizes, const at::TensorOptions& options = {});

/// The current stream of this thread for the tensor's device (a cudaStream_t); null for the host.
COHORT_API void* current_stream(const at::Tensor& tensor);

using TensorFuture = Future<at::Tensor>;

/// A future that already has its value.
COHORT_API TensorFuture completed_future(at::Tensor tensor);
/// Starts an all_reduce in place. For host memory the future completes with the operation. For device memory it is
/// completed at once, and this thread's current stream waits for the operation.
COHORT_API TensorFuture all_reduce_async(ProcessGroup& group, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum());
/// Starts an all_gather into a new tensor, which has the ranks as its first dimension.
COHORT_API TensorFuture all_gather_async(ProcessGroup& group, const at::Tensor& tensor);

/// The sum of the ranks' sparse COO tensors, which must have the same shape, dtype and number of sparse dimensions;
/// rows that several ranks have are added. It blocks. Any operation other than sum is a ValueError.
COHORT_API at::Tensor sparse_all_reduce(ProcessGroup& group, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum(),
                                        Timeout timeout = {});

}  // namespace cohort
