// SPDX-License-Identifier: BSD-3-Clause
//
// The functions of the CUDA driver that Cohort calls, as a table. It is filled from libcuda.so.1 at run time, so that
// nothing of CUDA is needed to build, and from a test double in tests. Names and types are Cohort's own; each member
// names the function it stands for. Handles are opaque pointers, as in the driver's own interface (a cudaStream_t is a
// CUstream).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cohort::cuda {

/// CUresult. Only the values that Cohort distinguishes have names.
using Result = int;
inline constexpr Result success = 0;
inline constexpr Result not_ready = 600;  ///< CUDA_ERROR_NOT_READY: the work that was queried is not complete

using Address = std::uintptr_t;  ///< CUdeviceptr

struct Driver {
  Result (*init)(unsigned flags) = nullptr;                                          // cuInit
  Result (*get_error_name)(Result error, const char** name) = nullptr;               // cuGetErrorName
  Result (*get_error_string)(Result error, const char** text) = nullptr;             // cuGetErrorString
  Result (*device_count)(int* count) = nullptr;                                      // cuDeviceGetCount
  Result (*primary_context_retain)(void** context, int device) = nullptr;            // cuDevicePrimaryCtxRetain
  Result (*primary_context_release)(int device) = nullptr;                           // ..PrimaryCtxRelease_v2
  Result (*context_get_current)(void** context) = nullptr;                           // cuCtxGetCurrent
  Result (*context_set_current)(void* context) = nullptr;                            // cuCtxSetCurrent
  Result (*context_get_device)(int* device) = nullptr;                               // cuCtxGetDevice
  Result (*stream_priority_range)(int* least, int* greatest) = nullptr;              // ..StreamPriorityRange
  Result (*stream_create)(void** stream, unsigned flags, int priority) = nullptr;    // ..CreateWithPriority
  Result (*stream_destroy)(void* stream) = nullptr;                                  // cuStreamDestroy_v2
  Result (*stream_wait_event)(void* stream, void* event, unsigned flags) = nullptr;  // cuStreamWaitEvent
  Result (*stream_is_capturing)(void* stream, int* status) = nullptr;                // cuStreamIsCapturing
  Result (*exchange_capture_mode)(int* mode) = nullptr;                            // cuThreadExchangeStreamCaptureMode
  Result (*event_create)(void** event, unsigned flags) = nullptr;                  // cuEventCreate
  Result (*event_destroy)(void* event) = nullptr;                                  // cuEventDestroy_v2
  Result (*event_record)(void* event, void* stream) = nullptr;                     // cuEventRecord
  Result (*event_query)(void* event) = nullptr;                                    // cuEventQuery
  Result (*event_elapsed)(float* milliseconds, void* start, void* end) = nullptr;  // cuEventElapsedTime
  Result (*memory_allocate)(Address* address, std::size_t bytes) = nullptr;        // cuMemAlloc_v2
  Result (*memory_free)(Address address) = nullptr;                                // cuMemFree_v2
  Result (*host_allocate)(void** data, std::size_t bytes) = nullptr;               // cuMemAllocHost_v2
  Result (*host_free)(void* data) = nullptr;                                       // cuMemFreeHost
  Result (*memory_set)(Address to, unsigned char value, std::size_t bytes) = nullptr;         // cuMemsetD8_v2
  Result (*copy)(Address to, Address from, std::size_t bytes) = nullptr;                      // cuMemcpy
  Result (*copy_async)(Address to, Address from, std::size_t bytes, void* stream) = nullptr;  // cuMemcpyAsync
};

inline constexpr unsigned stream_non_blocking = 1;   ///< CU_STREAM_NON_BLOCKING: does not wait for the null stream
inline constexpr unsigned event_without_timing = 2;  ///< CU_EVENT_DISABLE_TIMING: cheaper

inline Address address_of(const void* data) {
  return reinterpret_cast<Address>(data);
}

/// The driver of this process, loaded once. It is loaded but not started, because starting it costs a fraction of a
/// second, and a process that has started it cannot use it in forked children.
struct DriverState {
  Driver driver{};
  std::string missing{};  ///< what is missing and how to get it; empty if the driver can be started
};
const DriverState& system_driver();
/// Throws ValueError if the driver cannot be started or finds no GPU.
void start(const Driver& driver);

/// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
std::string describe(const Driver& driver, Result result);
/// Throws a BackendError that names the call unless it succeeded.
void check(const Driver& driver, Result result, std::string_view call);

}  // namespace cohort::cuda
