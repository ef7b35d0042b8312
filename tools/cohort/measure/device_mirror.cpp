// SPDX-License-Identifier: BSD-3-Clause
#include "measure/device_mirror.h"

#include <cohort/error.h>

#include <utility>

namespace cohort::measure {

namespace {

const cuda::Driver& started_driver() {
  const auto& state = cuda::system_driver();
  if (!state.missing.empty()) throw ValueError("device cuda: " + state.missing);
  cuda::start(state.driver);
  return state.driver;
}

}  // namespace

Device device_of(int local_rank) {
  const auto& driver = started_driver();
  int count = 0;
  cuda::check(driver, driver.device_count(&count), "cuDeviceGetCount");
  if (count == 0) throw ValueError("device cuda: this host has no GPU, or CUDA_VISIBLE_DEVICES hides them");
  return {DeviceType::cuda, local_rank % count};
}

DeviceMirror::DeviceMirror(const Device& device)
    : context_(std::make_shared<cuda::Context>(started_driver(), device.index)), one_byte_(context_, 1) {}

void DeviceMirror::mirror(std::size_t number, std::byte* host, std::size_t bytes) {
  auto& piece = pieces_.at(number);
  if (piece.device == nullptr || piece.device->bytes() < bytes) {
    piece.device.reset();
    piece.device = std::make_unique<cuda::Memory>(context_, bytes);
  }
  piece.host = host;
  piece.bytes = bytes;
}

void DeviceMirror::release() {
  for (auto& piece : pieces_) piece = {};
}

void* DeviceMirror::at(const void* host) const {
  const auto* const place = static_cast<const std::byte*>(host);
  for (const auto& piece : pieces_) {
    if (piece.device != nullptr && place >= piece.host && place < piece.host + piece.bytes) {
      return piece.device->data() + (place - piece.host);
    }
  }
  throw Error("the benchmark uses memory that has no counterpart on the device");
}

void DeviceMirror::copy(Direction direction) const {
  const auto& driver = context_->driver();
  const cuda::Current current(*context_);
  for (const auto& piece : pieces_) {
    if (piece.device == nullptr) continue;
    auto to = cuda::address_of(piece.device->data());
    auto from = cuda::address_of(piece.host);
    if (direction == Direction::to_host) std::swap(to, from);
    cuda::check(driver, driver.copy(to, from, piece.bytes), "cuMemcpy");
  }
}

void DeviceMirror::synchronize() const {
  // A copy to ordinary memory waits for what was enqueued before it.
  std::byte seen{};
  const auto& driver = context_->driver();
  const cuda::Current current(*context_);
  cuda::check(driver, driver.copy(cuda::address_of(&seen), cuda::address_of(one_byte_.data()), 1), "cuMemcpy");
}

}  // namespace cohort::measure
