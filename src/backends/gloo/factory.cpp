// SPDX-License-Identifier: BSD-3-Clause
#include "backends/gloo/factory.h"

#include <cohort/env.h>
#include <cohort/error.h>
#include <cohort/prefix_store.h>

#include <fmt/format.h>

#include "backends/common/joining.h"
#include "backends/common/local_address.h"
#include "backends/gloo/backend.h"
#include "backends/staged/factory.h"
#include "core/immortal.h"
#include "core/module.h"
#include "group/group_ids.h"

namespace cohort::gloo {

namespace {

const Module& gloo_module() {
  static const Immortal<Module> module(Module::of_engine("gloo", Env::read_one("COHORT_MODULE_PATH"), "libgloo",
                                                         "_ZN4gloo7Context19createUnboundBufferEPvm"));
  return *module;
}

/// Variables that a job inherits from a PyTorch setup are honoured or refused, never ignored.
void check_transport(const Env& env) {
  const auto transport = env.text("GLOO_DEVICE_TRANSPORT");
  if (transport.empty() || transport == "TCP") return;
  throw ValueError(
      fmt::format("GLOO_DEVICE_TRANSPORT={}: backend gloo uses TCP, which is the only transport of Debian's Gloo "
                  "besides ibverbs; for a faster network use backend mpi, or hybrid with engine mpi",
                  transport));
}

}  // namespace

MakeMesh module_function() {
  return gloo_module().find<MakeMesh>(make_mesh_symbol);
}

std::string what_is_missing() {
  if (module_function() != nullptr) return {};
  if (gloo_module().is_loaded()) return "its module libcohort_gloo.so belongs to another version of Cohort";
  return fmt::format(
      "its module could not be loaded ({}): install libgloo-dev and build Cohort again, or set "
      "COHORT_MODULE_PATH to the folder of libcohort_gloo.so",
      gloo_module().why_not());
}

namespace {

ProcessGroupPtr connect_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                              const Device& device, const FailureCheck& failure_check, Deadline deadline) {
  const auto id = agree_on_id(*store, "gloo");
  const auto env = Env::read();
  check_transport(env);
  const auto address = local_address(env, store, deadline);
  const auto connect = [&](const std::string& name, const StorePtr& keys) {
    auto group = std::make_shared<ProcessGroup>(keys, rank, size, timeout, name);
    group->add_backend(DeviceType::cpu, std::make_shared<GlooBackend>(GlooParts{.group = name,
                                                                                .store = keys,
                                                                                .rank = rank,
                                                                                .size = size,
                                                                                .address = address,
                                                                                .make_mesh = module_function(),
                                                                                .failure_check = failure_check},
                                                                      deadline));
    return group;
  };
  auto group = connect(id, store);
  if (device.type == DeviceType::cuda) {
    // With connections of its own, because operations on one kind of memory are not ordered with those on the other.
    const auto keys = std::make_shared<PrefixStore>("staged", store);
    group->add_backend(DeviceType::cuda, staged::make_backend(connect(fmt::format("{}/staged", id), keys), device));
    group->set_default_backend(DeviceType::cuda);
  }
  return group;
}

}  // namespace

ProcessGroupPtr make_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                           const Device& device, const Options& options) {
  if (!options.empty()) throw AssertionError("backend gloo takes no options");
  const auto deadline = Deadline::after(store->timeout());
  Joining joining(store, rank, size, deadline, {"id"});
  return joining.run(
      [&] { return connect_group(store, rank, size, timeout, device, joining.failure_check(), deadline); });
}

}  // namespace cohort::gloo
