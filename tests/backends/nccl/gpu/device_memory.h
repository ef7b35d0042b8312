// SPDX-License-Identifier: BSD-3-Clause
//
// Memory and streams of a real GPU, through the library's own table of driver functions.
#pragma once

#include <cohort/buffer.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/objects.h"
#include "core/module.h"

namespace cohort::test {

inline cuda::ContextPtr gpu_context() {
  static const auto context = [] {
    const auto& driver = cuda::system_driver().driver;
    cuda::start(driver);
    return std::make_shared<const cuda::Context>(driver, 0);
  }();
  return context;
}

/// Driver functions that the tests need and the library does not.
struct MoreOfTheDriver {
  cuda::Result (*stream_synchronize)(void* stream) = nullptr;
  cuda::Result (*begin_capture)(void* stream, int mode) = nullptr;
  cuda::Result (*end_capture)(void* stream, void** graph) = nullptr;
  cuda::Result (*instantiate)(void** executable, void* graph, unsigned long long flags) = nullptr;
  cuda::Result (*launch)(void* executable, void* stream) = nullptr;

  static const MoreOfTheDriver& get() {
    static const MoreOfTheDriver more = [] {
      static const std::array<std::string, 1> names = {"libcuda.so.1"};
      const auto module = Module::of_system(names);
      MoreOfTheDriver m;
      m.stream_synchronize = module.find<decltype(m.stream_synchronize)>("cuStreamSynchronize");
      m.begin_capture = module.find<decltype(m.begin_capture)>("cuStreamBeginCapture_v2");
      m.end_capture = module.find<decltype(m.end_capture)>("cuStreamEndCapture");
      m.instantiate = module.find<decltype(m.instantiate)>("cuGraphInstantiateWithFlags");
      m.launch = module.find<decltype(m.launch)>("cuGraphLaunch");
      return m;
    }();
    return more;
  }
};

inline void must(cuda::Result result, const char* what) {
  cuda::check(cuda::system_driver().driver, result, what);
}

/// Bytes on the device: copied in, used by operations, copied out.
class DeviceMemory {
 public:
  explicit DeviceMemory(const std::vector<std::uint8_t>& bytes)
      : memory_(std::make_shared<cuda::Memory>(gpu_context(), bytes.size())), size_(bytes.size()) {
    copy(cuda::address_of(memory_->data()), cuda::address_of(bytes.data()));
  }
  /// A buffer that keeps the memory alive.
  Buffer buffer(DType dtype) const {
    return {memory_->data(), dtype, {static_cast<std::int64_t>(size_ / size_of(dtype))}, {}, "cuda:0", memory_};
  }
  /// Copies after everything that was enqueued before on the null stream.
  std::vector<std::uint8_t> bytes() const {
    std::vector<std::uint8_t> out(size_);
    copy(cuda::address_of(out.data()), cuda::address_of(memory_->data()));
    return out;
  }
  std::weak_ptr<cuda::Memory> weak() const { return memory_; }

 private:
  void copy(cuda::Address to, cuda::Address from) const {
    const cuda::Current current(*gpu_context());
    if (size_ > 0) must(cuda::system_driver().driver.copy(to, from, size_), "cuMemcpy");
  }
  std::shared_ptr<cuda::Memory> memory_;
  std::size_t size_;
};

}  // namespace cohort::test
