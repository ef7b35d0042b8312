// SPDX-License-Identifier: BSD-3-Clause
//
// Tensors as what groups work on:
//
//   at::Tensor x = torch::ones({1024});
//   pg->all_reduce(x);                                                  // a tensor is a Buffer
//   auto work = pg->all_reduce(x, {.async_op = true, .stream = cohort::current_stream(x)});
//   cohort::TensorFuture sum = cohort::reduced(*pg, x);                 // for chains of steps, on any device
//
// The buffer holds the tensor's storage until the operation has ended. Elements of a tensor that is dense but not
// row-major (channels last, a transposed matrix) are taken in the order of its memory, so ranks must agree in strides;
// tensors with gaps or overlaps are refused, and so are sparse ones (but see sparse_all_reduce).
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/buffer.h>
#include <cohort/export.h>
#include <cohort/future.h>
#include <cohort/process_group.h>

#include <chrono>

namespace cohort {

/// A TypeError for what the core has no name for (quantised types, ...).
COHORT_API DType dtype_from(at::ScalarType type);
COHORT_API at::ScalarType scalar_type_from(DType dtype);
COHORT_API Device device_from(at::Device device);

COHORT_API Buffer buffer_of(const at::Tensor& tensor);

template <>
struct BufferTraits<at::Tensor> {
  static Buffer buffer(const at::Tensor& tensor) { return buffer_of(tensor); }
  static ConstBuffer const_buffer(const at::Tensor& tensor) { return buffer_of(tensor); }
};

/// The stream on which this thread works for the tensor's device (a cudaStream_t); null for the host.
COHORT_API void* current_stream(const at::Tensor& tensor);

using TensorFuture = Future<at::Tensor>;

/// Of something that is there already.
COHORT_API TensorFuture ready(at::Tensor tensor);
/// An asynchronous all_reduce in place, as a step of a chain. Host memory: the future is there when the result is.
/// Device memory: it is there at once, and this thread's current stream is behind the operation.
COHORT_API TensorFuture reduced(ProcessGroup& group, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum());
/// The ranks' tensors one after another, in one of another dimension in front.
COHORT_API TensorFuture gathered(ProcessGroup& group, const at::Tensor& tensor);

/// The sum of all ranks' sparse COO tensors, which must agree in shape, dtype and number of sparse dimensions; rows
/// that several ranks have are added up. Other operations than sum are a ValueError.
COHORT_API at::Tensor sparse_all_reduce(ProcessGroup& group, const at::Tensor& tensor, ReduceOp op = ReduceOp::sum(),
                                        Timeout timeout = {});

}  // namespace cohort
