// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/replicas.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <cohort/error.h>
#include <cohort/torch/capture_host.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "torch/flatten.h"
#include "torch/written.h"

namespace cohort::ddp {

namespace {

/// Smaller tensors are sent together: an operation for each would cost more than two copies.
constexpr std::size_t small_bytes = std::size_t{256} << 10U;
/// The largest size of what is sent together.
constexpr std::size_t flat_bytes = std::size_t{250} << 20U;

/// One line for each tensor.
std::string describe(std::span<const at::Tensor> tensors) {
  std::string text;
  for (const auto& each : tensors) {
    text += fmt::format("{} sizes [{}] strides [{}]\n", c10::toString(each.scalar_type()),
                        fmt::join(each.sizes(), ", "), fmt::join(each.strides(), ", "));
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Sends small tensors in host memory as bytes, so that dtypes may be mixed.
void broadcast_packed(ProcessGroup& group, std::span<const at::Tensor> tensors, int source) {
  std::size_t bytes = 0;
  for (const auto& each : tensors) bytes += each.nbytes();
  if (bytes == 0) return;
  std::vector<std::byte> packed(bytes);
  const auto each_place = [&](auto&& use) {
    auto* place = packed.data();
    for (const auto& each : tensors) {
      if (each.nbytes() > 0) use(place, static_cast<std::byte*>(each.data_ptr()), each.nbytes());
      place += each.nbytes();
    }
  };
  const bool is_source = group.rank() == source;
  if (is_source)
    each_place([](std::byte* place, const std::byte* data, std::size_t n) { std::memcpy(place, data, n); });
  group.broadcast(Buffer(packed.data(), DType::u8, {static_cast<std::int64_t>(bytes)}), {.root = source});
  if (!is_source)
    each_place([](const std::byte* place, std::byte* data, std::size_t n) { std::memcpy(data, place, n); });
}

/// What broadcast_packed() sends, as operators that a captured step can repeat.
void broadcast_bytes(ProcessGroup& group, std::span<const at::Tensor> tensors, int source) {
  std::vector<at::Tensor> bytes;
  for (const auto& each : tensors) {
    if (each.nbytes() == 0) continue;
    bytes.push_back(each.as_strided({each.numel()}, {1}, each.storage_offset()).view(at::kByte));
  }
  if (bytes.empty()) return;
  const auto packed = at::cat(bytes);
  group.broadcast(buffer_of(packed), {.root = source});
  if (group.rank() == source) return;
  std::int64_t place = 0;
  for (const auto& each : bytes) {
    each.copy_(packed.narrow(0, place, each.numel()));
    place += each.numel();
  }
}

/// Sends small tensors of one device and dtype.
void broadcast_flattened(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int source) {
  const auto flat = flattened(tensors);
  group.broadcast(buffer_of(flat), {.root = source, .stream = current_stream(flat)});
  if (group.rank() != source) copy_from_flat(flat, tensors);
}

}  // namespace

void check_replicas(ProcessGroup& group, std::span<const at::Tensor> tensors, std::span<const std::string> names) {
  const auto all = group.all_gather_bytes(describe(tensors));
  const auto reference = lines_of(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto theirs = lines_of(all[rank]);
    const ErrorContext context{.group = group.id(), .op = "DistributedDataParallel", .rank = static_cast<int>(rank)};
    if (theirs.size() != reference.size()) {
      throw Error(fmt::format("rank {} has {} parameters, rank 0 has {}", rank, theirs.size(), reference.size()),
                  context);
    }
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      if (theirs[i] == reference[i]) continue;
      throw Error(fmt::format("parameter {}{} differs: rank {} has {}, rank 0 has {}", i,
                              i < names.size() ? fmt::format(" ({})", names[i]) : "", rank, theirs[i], reference[i]),
                  context);
    }
  }
}

void broadcast_tensors(ProcessGroup& group, std::span<const at::Tensor> tensors, int source) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> packed;
  std::size_t packed_bytes = 0;
  const auto send_packed = [&] {
    (is_capturing() ? broadcast_bytes : broadcast_packed)(group, packed, source);
    packed.clear();
    packed_bytes = 0;
  };
  std::map<std::pair<at::ScalarType, at::DeviceIndex>, std::vector<at::Tensor>> of_devices;
  for (const auto& each : tensors) {
    const auto tensor = each.detach();
    // On the source as well, whose values stay the same: all ranks then fail alike if a backward has saved the tensor.
    mark_written(tensor);
    const bool is_dense = tensor.is_non_overlapping_and_dense();
    if (is_dense && tensor.nbytes() >= small_bytes) {
      group.broadcast(buffer_of(tensor), {.root = source, .stream = current_stream(tensor)});
    } else if (is_dense && tensor.is_cpu()) {
      packed.push_back(tensor);
      packed_bytes += tensor.nbytes();
      if (packed_bytes >= flat_bytes) send_packed();
    } else {
      of_devices[{tensor.scalar_type(), tensor.device().index()}].push_back(tensor);
    }
  }
  send_packed();
  for (const auto& [type, each] : of_devices) broadcast_flattened(group, each, source);
}

}  // namespace cohort::ddp
