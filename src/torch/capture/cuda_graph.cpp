// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/device_graph.h"

#ifdef COHORT_HAS_CUDA_GRAPHS

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cohort/log.h>

#include <fmt/format.h>

namespace cohort::recording {

namespace {

/// libtorch's, which after a failed capture leaves allocator and generators as during one.
class Capture : public at::cuda::CUDAGraph {
 public:
  void begin(std::span<const at::Generator> generators) {
    for (const auto& each : generators) register_generator_state(each);
    // Other threads may allocate memory and wait for events meanwhile; what this thread must not do is an error.
    capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  }

  void abandon() noexcept {
    const auto quietly = [](const auto& function) {
      try {
        function();
      } catch (const c10::Error& e) {
        log(LogLevel::debug,
            fmt::format("capture: ending the capture of a CUDA graph: {}", e.what_without_backtrace()));
      }
    };
    quietly([&] { capture_end(); });
    if (capture_ended_) return;
    quietly([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(capture_dev_, mempool_id_); });
    for (const auto& each : captured_generator_states_) each.first->capturing_ = false;
    capture_ended_ = true;  // the destructor gives the pool back
  }
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(c10::Device device, std::span<const at::Generator> generators, const std::function<void()>& work) {
    const c10::cuda::CUDAGuard on_device(device);
    // The graph gets memory of its own: what the step needed until now is free for others.
    c10::cuda::CUDACachingAllocator::emptyCache();
    // cuBLAS works in memory that libtorch keeps for each stream, and which must not be that of another graph.
    at::cuda::clearCublasWorkspaces();
    {
      const c10::cuda::CUDAStreamGuard beside(c10::cuda::getStreamFromPool(false, device.index()));
      capture_.begin(generators);
      try {
        work();
        capture_.capture_end();
      } catch (...) {
        capture_.abandon();
        at::cuda::clearCublasWorkspaces();
        throw;
      }
    }
    at::cuda::clearCublasWorkspaces();
  }

  void launch() override { capture_.replay(); }

 private:
  Capture capture_;
};

}  // namespace

bool has_device_graphs() noexcept {
  return true;
}

std::unique_ptr<DeviceGraph> capture_device_graph(c10::Device device, std::span<const at::Generator> generators,
                                                  const std::function<void()>& work) {
  return std::make_unique<CudaGraph>(device, generators, work);
}

}  // namespace cohort::recording

#else

#include <cohort/error.h>

namespace cohort::recording {

bool has_device_graphs() noexcept {
  return false;
}

std::unique_ptr<DeviceGraph> capture_device_graph(c10::Device /*device*/, std::span<const at::Generator> /*generators*/,
                                                  const std::function<void()>& /*work*/) {
  throw NotSupportedError("CUDA graphs need a libtorch with CUDA, and this library was built with one without");
}

}  // namespace cohort::recording

#endif
