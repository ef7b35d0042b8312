// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/bucket_assignment.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

namespace cohort::ddp {

namespace {

/// The open bucket of one dtype and device. They are kept in a list and not in a map: there are few, and their order
/// must not depend on addresses or hashes.
struct Open {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::size_t bytes = 0;
  std::size_t cursor = 0;
  std::vector<std::size_t> parameters{};
};

Open& open_for(std::vector<Open>& all, const TensorInfo& tensor) {
  for (auto& each : all) {
    if (each.dtype == tensor.dtype && each.device == tensor.device) return each;
  }
  return all.emplace_back(Open{.dtype = tensor.dtype, .device = tensor.device});
}

}  // namespace

std::vector<AssignedBucket> assign_buckets(std::span<const TensorInfo> tensors, std::span<const std::size_t> limits,
                                           std::span<const std::size_t> order) {
  std::vector<AssignedBucket> buckets;
  std::vector<Open> open;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto parameter = order.empty() ? i : order[i];
    const auto& tensor = tensors[parameter];
    if (tensor.is_sparse) {
      buckets.push_back({.parameters = {parameter}});
      continue;
    }
    auto& into = open_for(open, tensor);
    into.parameters.push_back(parameter);
    into.bytes += tensor.bytes;
    const auto limit = limits[into.cursor];
    if (into.bytes < limit) continue;
    buckets.push_back({.parameters = std::move(into.parameters), .limit = limit});
    into.parameters.clear();
    into.bytes = 0;
    into.cursor = std::min(into.cursor + 1, limits.size() - 1);
  }
  for (auto& each : open) {
    if (!each.parameters.empty()) {
      buckets.push_back({.parameters = std::move(each.parameters), .limit = limits[each.cursor]});
    }
  }
  if (order.empty()) {
    std::stable_sort(buckets.begin(), buckets.end(), [](const AssignedBucket& a, const AssignedBucket& b) {
      return *std::min_element(a.parameters.begin(), a.parameters.end()) <
             *std::min_element(b.parameters.begin(), b.parameters.end());
    });
  }
  return buckets;
}

namespace {
void append(std::string& bytes, std::uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}
}  // namespace

std::string to_bytes(std::span<const AssignedBucket> buckets) {
  std::string bytes;
  append(bytes, buckets.size());
  for (const auto& bucket : buckets) {
    append(bytes, bucket.limit);
    append(bytes, bucket.parameters.size());
    for (const auto parameter : bucket.parameters) append(bytes, parameter);
  }
  return bytes;
}

std::vector<AssignedBucket> buckets_from_bytes(const std::string& bytes, std::size_t parameters) {
  const auto refuse = [](const char* what) {
    throw IndexError(
        fmt::format("the buckets that rank 0 sent {}: its parameters differ from this rank's, or it failed; "
                    "end the job and look at rank 0's log",
                    what));
  };
  std::size_t place = 0;
  const auto next = [&] {
    std::uint64_t number = 0;
    if (place + sizeof(number) > bytes.size()) refuse("end early");
    std::memcpy(&number, bytes.data() + place, sizeof(number));
    place += sizeof(number);
    return static_cast<std::size_t>(number);
  };
  std::vector<bool> seen(parameters);
  std::size_t left = parameters;
  std::vector<AssignedBucket> buckets;
  for (auto count = next(); count > 0; --count) {
    AssignedBucket bucket{.limit = next()};
    for (auto size = next(); size > 0; --size) {
      const auto parameter = next();
      if (parameter >= parameters || seen[parameter]) refuse("name a parameter that there is not, or one twice");
      seen[parameter] = true;
      --left;
      bucket.parameters.push_back(parameter);
    }
    if (bucket.parameters.empty()) refuse("hold an empty one");
    buckets.push_back(std::move(bucket));
  }
  if (left > 0 || place != bytes.size()) refuse("do not hold every parameter once");
  return buckets;
}

}  // namespace cohort::ddp
