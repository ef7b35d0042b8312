// SPDX-License-Identifier: BSD-3-Clause
#include "torch/c10d/c10d_operands.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace cohort {

namespace {

at::TensorOptions options(at::ScalarType type, at::Device device) {
  return at::TensorOptions(type).device(device);
}

std::int64_t count_of(std::size_t bytes, at::ScalarType type) {
  return static_cast<std::int64_t>(bytes / c10::elementSize(type));
}

/// The first piece that is not empty, if all of them lie one after another; null otherwise.
template <class Pieces>
const std::byte* start_of(const Pieces& pieces) {
  const std::byte* start = nullptr;
  const std::byte* end = nullptr;
  for (const auto& each : pieces) {
    if (each.empty()) continue;
    if (end != nullptr && each.data() != end) return nullptr;
    if (start == nullptr) start = each.data();
    end = each.data() + each.size();
  }
  return start;
}

template <class Pieces>
std::size_t total_of(const Pieces& pieces) {
  std::size_t total = 0;
  for (const auto& each : pieces) total += each.size();
  return total;
}

}  // namespace

std::shared_ptr<const Operands::Owners> Operands::owners_of(const Operation& op) {
  auto owners = std::make_shared<Owners>();
  const auto add = [&](const ConstBuffer& buffer) {
    if (buffer.count() > 0) owners->push_back(buffer.keep_alive());
  };
  std::ranges::for_each(op.input_buffers, add);
  std::ranges::for_each(op.output_buffers, add);
  const bool are_known = !owners->empty() && std::ranges::find(*owners, nullptr) == owners->end();
  return are_known ? owners : nullptr;
}

at::Tensor Operands::shared(const std::byte* data, std::size_t bytes, at::ScalarType type) const {
  // c10d only reads inputs, but tensors are not const.
  return at::from_blob(
      const_cast<std::byte*>(data), {count_of(bytes, type)}, [owners = owners_](void* /*data*/) {},
      options(type, memory_));
}

at::Tensor Operands::borrowed(const std::byte* data, std::size_t bytes, at::ScalarType type) const {
  return at::from_blob(const_cast<std::byte*>(data), {count_of(bytes, type)}, options(type, memory_));
}

at::Tensor Operands::scratch(std::size_t bytes, at::ScalarType type) {
  return tensors_.emplace_back(at::empty({count_of(bytes, type)}, options(type, device_)));
}

void Operands::load(const at::Tensor& to, ConstBytes from) const {
  if (from.empty() || to.data_ptr() == from.data()) return;
  to.copy_(borrowed(from.data(), from.size(), to.scalar_type()));
}

at::Tensor Operands::input(ConstBytes from, at::ScalarType type) {
  return packed_input({&from, 1}, type);
}

at::Tensor Operands::output(Bytes to, at::ScalarType type) {
  if (are_shared() && !to.empty()) return tensors_.emplace_back(shared(to.data(), to.size(), type));
  auto tensor = scratch(to.size(), type);
  copies_.push_back({tensor, to});
  return tensor;
}

at::Tensor Operands::packed_input(std::span<const ConstBytes> pieces, at::ScalarType type) {
  const auto* const start = start_of(pieces);
  if (!are_shared() || start == nullptr) return packed_copy(pieces, type);
  return tensors_.emplace_back(shared(start, total_of(pieces), type));
}

at::Tensor Operands::packed_copy(std::span<const ConstBytes> pieces, at::ScalarType type) {
  auto tensor = scratch(total_of(pieces), type);
  std::int64_t at = 0;
  for (const auto& each : pieces) {
    const auto count = count_of(each.size(), type);
    load(tensor.narrow(0, at, count), each);
    at += count;
  }
  return tensor;
}

at::Tensor Operands::packed_output(std::span<const Bytes> pieces) {
  const auto total = total_of(pieces);
  const auto* const start = start_of(pieces);
  if (are_shared() && start != nullptr) return tensors_.emplace_back(shared(start, total, at::kByte));
  auto tensor = scratch(total);
  std::int64_t at = 0;
  for (const auto& each : pieces) {
    const auto bytes = static_cast<std::int64_t>(each.size());
    copies_.push_back({tensor.narrow(0, at, bytes), each});
    at += bytes;
  }
  return tensor;
}

void Operands::store() {
  for (const auto& each : copies_) {
    if (each.to.empty()) continue;
    borrowed(each.to.data(), each.to.size(), each.from.scalar_type()).copy_(each.from);
  }
}

}  // namespace cohort
