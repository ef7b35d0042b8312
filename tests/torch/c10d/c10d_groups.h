// SPDX-License-Identifier: BSD-3-Clause
//
// Groups on c10d's groups: PyTorch's own gloo, and a group of ours that c10d sees as one of its own. Gloo is tested
// where libtorch stands on a Gloo whose headers are there; PyTorch's builds of libtorch 2 contain another one.
#pragma once

#include <ATen/Parallel.h>
#include <cohort/torch/c10d.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <array>
#include <chrono>
#include <functional>

#include "torch/compat/features.h"
#include "torch/torch_ranks.h"

// Newer versions carry a Gloo of their own, whose headers are not installed.
#if !COHORT_TORCH_HAS_C10D_BACKEND && defined(USE_C10D_GLOO) && __has_include(<gloo/algorithm.h>)
#define COHORT_TEST_HAS_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

namespace cohort::test {

using C10dGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

/// A c10d group whose backend for the host this is.
inline C10dGroupPtr group_of(const c10::intrusive_ptr<C10dBackend>& backend,
                             const c10::intrusive_ptr<c10d::Store>& store) {
#if COHORT_TORCH_HAS_C10D_BACKEND
  const auto type = c10d::ProcessGroup::strToBackendType(backend->getBackendName());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, backend->getRank(), backend->getSize());
  group->setBackend(at::kCPU, type, backend);
  group->setDefaultBackend(type);
  return group;
#else
  static_cast<void>(store);
  return backend;
#endif
}

/// One rank of a c10d group of `size`. All ranks are given the same `store`.
using MakeC10dGroup = C10dGroupPtr (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       std::chrono::milliseconds timeout);

inline C10dGroupPtr make_cohort(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                std::chrono::milliseconds timeout) {
  return group_of(
      to_c10d(new_group("thread", timeout, "cpu", {}, {.store = from_c10d(store), .rank = rank, .size = size})), store);
}

#ifdef COHORT_TEST_HAS_C10D_GLOO
inline C10dGroupPtr make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                              std::chrono::milliseconds timeout) {
  const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return group_of(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options), store);
}
inline constexpr std::array<MakeC10dGroup, 2> all_kinds{make_gloo, make_cohort};
#else
inline constexpr std::array<MakeC10dGroup, 1> all_kinds{make_cohort};
#endif

/// `body` gets the c10d group.
inline void with_c10d(MakeC10dGroup make, int size, const std::function<void(const C10dGroupPtr&)>& body,
                      std::chrono::milliseconds timeout = patient) {
  at::set_num_threads(1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  as_threads(size, [&](int rank) { body(make(store, rank, size, timeout)); });
}

inline void with_kind(MakeC10dGroup make, int size, const GroupBody& body) {
  with_c10d(make, size, [&](const C10dGroupPtr& theirs) {
    const auto group = from_c10d(theirs, patient);
    body(group);
    group->barrier();  // no rank leaves while another still uses its connections
  });
}

/// On every kind of c10d group, with 1, 2 and 3 ranks.
inline void on_all(const GroupBody& body) {
  for (const auto make : all_kinds) {
    for (const int size : {1, 2, 3}) with_kind(make, size, body);
  }
}

}  // namespace cohort::test
