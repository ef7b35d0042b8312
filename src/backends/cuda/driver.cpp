// SPDX-License-Identifier: BSD-3-Clause
#include "backends/cuda/driver.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "core/module.h"

namespace cohort::cuda {

namespace {

template <class Function>
void fill(const Module& module, Function& place, const char* symbol, std::string& missing) {
  place = module.find<Function>(symbol);
  if (place == nullptr && missing.empty()) missing = fmt::format("the NVIDIA driver has no {}: it is too old", symbol);
}

DriverState load() {
  static const std::array<std::string, 1> names = {"libcuda.so.1"};
  DriverState state;
  const auto module = Module::of_system(names);
  if (!module.is_loaded()) {
    state.missing = fmt::format(
        "there is no NVIDIA driver ({}): install it (Debian: nvidia-driver, in a container: nvidia-container-toolkit)",
        module.why_not());
    return state;
  }
  auto& d = state.driver;
  auto& why = state.missing;
  fill(module, d.init, "cuInit", why);
  fill(module, d.get_error_name, "cuGetErrorName", why);
  fill(module, d.get_error_string, "cuGetErrorString", why);
  fill(module, d.device_count, "cuDeviceGetCount", why);
  fill(module, d.primary_context_retain, "cuDevicePrimaryCtxRetain", why);
  fill(module, d.primary_context_release, "cuDevicePrimaryCtxRelease_v2", why);
  fill(module, d.context_get_current, "cuCtxGetCurrent", why);
  fill(module, d.context_set_current, "cuCtxSetCurrent", why);
  fill(module, d.context_get_device, "cuCtxGetDevice", why);
  fill(module, d.stream_priority_range, "cuCtxGetStreamPriorityRange", why);
  fill(module, d.stream_create, "cuStreamCreateWithPriority", why);
  fill(module, d.stream_destroy, "cuStreamDestroy_v2", why);
  fill(module, d.stream_wait_event, "cuStreamWaitEvent", why);
  fill(module, d.stream_is_capturing, "cuStreamIsCapturing", why);
  fill(module, d.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", why);
  fill(module, d.event_create, "cuEventCreate", why);
  fill(module, d.event_destroy, "cuEventDestroy_v2", why);
  fill(module, d.event_record, "cuEventRecord", why);
  fill(module, d.event_query, "cuEventQuery", why);
  fill(module, d.event_elapsed, "cuEventElapsedTime", why);
  fill(module, d.memory_allocate, "cuMemAlloc_v2", why);
  fill(module, d.memory_free, "cuMemFree_v2", why);
  fill(module, d.host_allocate, "cuMemAllocHost_v2", why);
  fill(module, d.host_free, "cuMemFreeHost", why);
  fill(module, d.memory_set, "cuMemsetD8_v2", why);
  fill(module, d.copy, "cuMemcpy", why);
  fill(module, d.copy_async, "cuMemcpyAsync", why);
  // The library also exists on machines without a GPU. /dev/dxg is the device under Windows (WSL).
  if (why.empty() && ::access("/dev/nvidiactl", F_OK) != 0 && ::access("/dev/dxg", F_OK) != 0) {
    why =
        "there is an NVIDIA driver but no GPU (no /dev/nvidiactl): see nvidia-smi, and in a container install "
        "nvidia-container-toolkit on its host";
  }
  return state;
}

}  // namespace

const DriverState& system_driver() {
  static const DriverState state = load();
  return state;
}

void start(const Driver& driver) {
  if (const auto result = driver.init(0); result != success) {
    throw ValueError(fmt::format("the NVIDIA driver does not start: {}", describe(driver, result)));
  }
  int count = 0;
  if (driver.device_count(&count) != success || count == 0) {
    throw ValueError("the NVIDIA driver finds no GPU (see nvidia-smi and CUDA_VISIBLE_DEVICES)");
  }
}

std::string describe(const Driver& driver, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.get_error_name(result, &name) != success || name == nullptr) return fmt::format("CUDA error {}", result);
  if (driver.get_error_string(result, &text) != success || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

void check(const Driver& driver, Result result, std::string_view call) {
  if (result == success) return;
  throw BackendError(fmt::format("{}: {}", call, describe(driver, result)));
}

}  // namespace cohort::cuda
