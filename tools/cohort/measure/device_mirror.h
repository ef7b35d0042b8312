// SPDX-License-Identifier: BSD-3-Clause
//
// Memory of a CUDA device for each piece of host memory: operations are measured on the one, while inputs are made and
// results are checked on the other. The driver is loaded at run time, so nothing of CUDA is needed to build.
#pragma once

#include <cohort/device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/cuda/objects.h"

namespace cohort::measure {

/// The GPU of a rank: ranks of a host take them in turn. Throws a ValueError where there is no driver or no GPU.
Device device_of(int local_rank);

class DeviceMirror {
 public:
  explicit DeviceMirror(const Device& device);

  /// Makes memory number 0 or 1 of the device the counterpart of `host`.
  void mirror(std::size_t number, std::byte* host, std::size_t bytes);
  void release();
  /// The place on the device for a place in one of the host's pieces.
  void* at(const void* host) const;

  enum class Direction : std::uint8_t { to_device, to_host };
  void copy(Direction direction) const;
  /// Returns when the work on the null stream is complete.
  void synchronize() const;

 private:
  struct Piece {
    std::byte* host = nullptr;
    std::size_t bytes = 0;
    std::unique_ptr<cuda::Memory> device{};
  };

  cuda::ContextPtr context_;
  std::array<Piece, 2> pieces_;
  cuda::Memory one_byte_;
};

}  // namespace cohort::measure
