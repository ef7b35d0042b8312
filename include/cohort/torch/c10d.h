// SPDX-License-Identifier: BSD-3-Clause
//
// Groups and stores of PyTorch's C++ library c10d as groups and stores of Cohort, and the other way round.
//
//   cohort::ProcessGroupPtr pg = cohort::from_c10d(torch_group);          // any backend that PyTorch has
//   cohort::DistributedDataParallel ddp(net, {.process_group = pg});
//   cohort::StorePtr store = cohort::from_c10d(torch_store);
//
//   c10::intrusive_ptr<cohort::C10dBackend> theirs = cohort::to_c10d(pg);  // for code that is written for c10d
//   theirs->allreduce(my_shard)->wait();
//
// The Python module (docs/python.md) is to_c10d() under the name "cohort" in torch.distributed.
//
// Groups made by from_c10d: operations keep the order, the numbers, the deadlines and the records of Cohort's groups,
// and the arithmetic, the order of reduction and the failure detection of the c10d backend. c10d does not compare what
// ranks call, so neither do these groups, except at debug level `detail` (debug_level.h). A group is used either
// through Cohort or through c10d, not through both at the same time, since the order of their collectives must be the
// same on all ranks. A reduction that the c10d backend has not got for a type is a BackendError with c10d's text; avg,
// premul_sum, bool, complex numbers, and pieces of different sizes work everywhere. A rank sends no messages to itself.
//
// c10d cannot take an operation back. After an error or a missed deadline of a collective, such a group has ended:
// later operations fail with that reason. c10d may then still use the tensors of the operation, which it keeps alive;
// of other memory it only ever sees copies. A send that missed its deadline may still be received, and the message of a
// receive that did is left to the next one. The destructor of the c10d group waits for what has not ended, until the
// timeout that c10d itself was given. abort() aborts the c10d group as well, where c10d can.
//
// On CUDA, which needs libtorch 2.11, operations are ordered on the current stream of the thread that calls them
// (current_stream() in tensor.h), which waits for them at once. They cannot be part of CUDA graphs.
//
// Groups made by to_c10d: every operation of c10d, on the memory of the host. Collectives run in the order in which
// they are issued, and a Work that is waited for at once runs on the thread that waits. A future's callbacks run on
// threads of their own, as many as are needed, so they may wait for further operations. Tensors are handled as in
// tensor.h: one that is dense but not row-major must have the same strides on all ranks; one with gaps is refused; what
// is written has its autograd version raised. Sparse tensors are summed before the call returns. Where libtorch can ask
// for it (2.14; not 2.6), a group that was made by new_group() is split and shrunk: by split(), which the ranks of the
// new group call, and by shrink(), which those that remain call; operations in progress end with an error then,
// whatever the flags.
#pragma once

#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/store.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace cohort {

namespace detail {
template <class Group>
struct BackendOf {
  using type = Group;
};
template <class Group>
  requires requires(Group group) { group.getBackend(c10::DeviceType::CPU); }
struct BackendOf<Group> {
  using type = typename decltype(std::declval<Group&>().getBackend(c10::DeviceType::CPU))::element_type;
};
}  // namespace detail

/// What a backend of c10d derives from: c10d::ProcessGroup in libtorch 1.13, c10d::Backend since 2.0.
using C10dBackend = detail::BackendOf<c10d::ProcessGroup>::type;

/// A group whose operations are those of `group`. Called by all ranks, which agree on its id. It splits where c10d and
/// the backend can (libtorch 2.14, not 2.6; capabilities().splitting); where they cannot, make the groups of some ranks
/// with c10d, and a mesh out of several of them with DeviceMesh::from_group. `timeout` becomes the group's.
/// `global_ranks` says which ranks of the job its members are, which a mesh asks for (default: 0, 1, ...). The current CUDA device of the calling
/// thread is the group's, unless the c10d group is bound to one.
COHORT_API ProcessGroupPtr from_c10d(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                     std::chrono::milliseconds timeout = ProcessGroup::default_timeout,
                                     std::vector<int> global_ranks = {});

/// The same keys and values. Calls of both may be mixed; waits keep Cohort's deadlines. There are no queues, and append
/// needs libtorch 2.
COHORT_API StorePtr from_c10d(c10::intrusive_ptr<c10d::Store> store);

/// Classes of c10d that are derived from these two. A pointer to them converts to anything as far as overloading can
/// see.
template <class T>
  requires(std::derived_from<T, c10d::ProcessGroup> && !std::same_as<T, c10d::ProcessGroup>)
ProcessGroupPtr from_c10d(const c10::intrusive_ptr<T>& group,
                          std::chrono::milliseconds timeout = ProcessGroup::default_timeout,
                          std::vector<int> global_ranks = {}) {
  return from_c10d(c10::intrusive_ptr<c10d::ProcessGroup>(group), timeout, std::move(global_ranks));
}
template <class T>
  requires(std::derived_from<T, c10d::Store> && !std::same_as<T, c10d::Store>)
StorePtr from_c10d(const c10::intrusive_ptr<T>& store) {
  return from_c10d(c10::intrusive_ptr<c10d::Store>(store));
}

struct ToC10dOptions {
  /// Let c10d's reducer put its buckets into memory of the group, where the group and libtorch (2.7 or newer) support
  /// it.
  bool group_memory = true;
  /// Called with the group, and with each group that c10d makes from it; what it returns is kept and used in its place.
  /// For languages in which a lock must be released while a group ends.
  std::function<ProcessGroupPtr(ProcessGroupPtr)> hold{};
};
/// Smaller buckets stay in ordinary memory: with 1,000 parameters of 1 KiB, DDP added about twice as much to a step
/// when its bucket was in memory of the group. A likely cause is that a reduction there leaves half of the bucket in
/// the cache of a peer's core; it was not measured, and neither was the best size.
inline constexpr std::size_t least_bucket_in_group_memory = std::size_t{2} << 20;
COHORT_API c10::intrusive_ptr<C10dBackend> to_c10d(ProcessGroupPtr group, const ToC10dOptions& options = {});
/// The group that to_c10d() was given; null if `backend` was made otherwise.
COHORT_API ProcessGroupPtr group_behind(const C10dBackend& backend);
/// Whether buckets of a reducer belong into memory of the group behind it: it was asked for, and the group has such
/// memory.
COHORT_API bool wants_group_memory(const C10dBackend& backend);

COHORT_API c10::intrusive_ptr<c10d::Store> to_c10d(StorePtr store);

/// For a language whose run time ends before the process does, such as Python: called at its end, without its lock.
/// From then on no callback of a future begins, and no other thread returns from an operation or a wait of a group made
/// by to_c10d(): it could only return into a run time that has ended. Waits for the callbacks that run, but no longer
/// than
/// `timeout`. Operations go on, so that the other ranks get what they wait for.
COHORT_API void prepare_c10d_for_exit(std::chrono::milliseconds timeout);

}  // namespace cohort
