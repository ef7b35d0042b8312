// SPDX-License-Identifier: BSD-3-Clause
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cohort/error.h>
#include <cohort/prefix_store.h>
#include <cohort/torch/c10d.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <utility>

#include "group/group_ids.h"
#include "group/process_group_state.h"
#include "torch/c10d/c10d_backend.h"
#include "torch/compat/features.h"

namespace cohort {

namespace {

/// The devices of the c10d group that Cohort has a type for. An accelerator is the one that it is bound to, or the
/// current one of this thread.
std::vector<at::Device> devices_of(c10d::ProcessGroup& group) {
  std::vector<at::Device> devices;
#if COHORT_TORCH_HAS_C10D_BACKEND
  for (const auto& each : group.getDeviceTypes()) {
    if (each.is_cpu()) devices.insert(devices.begin(), at::kCPU);
    if (!each.is_cuda()) continue;
    const auto bound = group.getBoundDeviceId();
    devices.push_back(bound ? *bound : c10::impl::VirtualGuardImpl(at::kCUDA).getDevice());
  }
#else
  const bool is_on_gpus = group.getBackendName() == "nccl";
  devices.push_back(is_on_gpus ? c10::impl::VirtualGuardImpl(at::kCUDA).getDevice() : at::Device(at::kCPU));
#endif
  if (devices.empty()) throw ValueError("from_c10d: the group has no backend for cpu or cuda");
  return devices;
}

/// Rank 0 chooses it.
std::string agree_on_id(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                        std::chrono::milliseconds timeout) {
  std::array<std::uint32_t, 4> number{};
  std::random_device random;
  std::ranges::generate(number, std::ref(random));
  Call call(OpType::broadcast, 0, timeout);
  C10dGroupBackend(group, device, "from_c10d")
      .perform(Operation::broadcast(std::as_writable_bytes(std::span(number)), 0), call);
  return fmt::format("c10d-{:08x}", fmt::join(number, ""));
}

/// The group's store, if c10d gives it, for groups that are made through it (PartitionOptions).
template <class Group>
StorePtr store_of(const Group& group, const std::string& id) {
  if constexpr (requires { group.getStore(); }) {
    if (auto store = group.getStore()) return std::make_shared<PrefixStore>(id, from_c10d(std::move(store)));
  }
  return nullptr;
}

}  // namespace

ProcessGroupPtr from_c10d(c10::intrusive_ptr<c10d::ProcessGroup> group, std::chrono::milliseconds timeout,
                          std::vector<int> global_ranks) {
  if (!group) throw ValueError("from_c10d: no group");
  if (!global_ranks.empty() && global_ranks.size() != static_cast<std::size_t>(group->getSize())) {
    throw ValueError(fmt::format("from_c10d: {} global ranks of a group of {}", global_ranks.size(), group->getSize()));
  }
  if (timeout.count() <= 0) {
    throw ValueError(fmt::format("from_c10d: the timeout must be positive, not {} ms", timeout.count()));
  }
  const auto devices = devices_of(*group);
  const auto id = agree_on_id(group, devices.front(), timeout);
  auto made = std::make_shared<ProcessGroup>(store_of(*group, id), group->getRank(), group->getSize(), timeout, id);
  for (const auto& device : devices) {
    made->add_backend(device.is_cpu() ? DeviceType::cpu : DeviceType::cuda,
                      std::make_shared<C10dGroupBackend>(group, device, id));
  }
  if (!global_ranks.empty()) GroupAccess::set_global_ranks(*made, std::move(global_ranks));
  remember_group(id, made);
  return made;
}

}  // namespace cohort
