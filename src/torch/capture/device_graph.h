// SPDX-License-Identifier: BSD-3-Clause
//
// Work on a GPU that was captured once and is launched as a whole: a CUDA graph, of at::cuda::CUDAGraph. Only the file
// that implements this is compiled against libtorch's CUDA headers, and only where libtorch has them.
//
//   if (has_device_graphs()) graph = capture_device_graph(device, generators, [&] { y = x.mm(w); });
//   graph->launch();                                 // writes y
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <span>

namespace cohort::recording {

class DeviceGraph {
 public:
  DeviceGraph() = default;
  virtual ~DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  /// On the current stream. Random numbers go on as if the work had been called.
  virtual void launch() = 0;
};

/// Whether this library was built with a libtorch that has CUDA.
bool has_device_graphs() noexcept;

/// Captures what `work` does on the device, on a stream beside the current one; nothing of it runs. Memory that it
/// allocates belongs to the graph: tensors that `work` keeps are written anew by each launch. `generators` are those
/// that it draws from besides the default one. Throws what `work` throws, and libtorch's error for what a graph cannot
/// contain; everything is as before then.
std::unique_ptr<DeviceGraph> capture_device_graph(c10::Device device, std::span<const at::Generator> generators,
                                                  const std::function<void()>& work);

}  // namespace cohort::recording
