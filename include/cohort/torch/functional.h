// SPDX-License-Identifier: BSD-3-Clause
//
// Functional collectives leave their inputs alone and return new tensors, at once, while the communication goes on. The
// result is an ordinary at::Tensor that knows that it is in flight: the first use of its elements waits.
//
//   namespace functional = cohort::functional;
//   auto sum = functional::all_reduce(x, "sum", pg);                 // starts; x does not change
//   auto rows = sum.view({-1, 4});                                   // views do not wait
//   compute();
//   auto doubled = rows * 2;                                         // waits, once
//
//   auto mesh = cohort::init_device_mesh("cpu", {2, 4}, {"dp", "tp"});
//   auto mine = functional::reduce_scatter_tensor(x, "avg", 0, {mesh, "tp"});
//   auto wide = functional::all_gather_tensor(mine, 1, mesh["tp"]);  // a mesh of one dimension
//   auto grown = functional::all_gather_tensor_autograd(x, 0, pg);   // with a gradient
//
// What waits: every operator that uses the elements, item(), printing, copies to other devices or dtypes, data_ptr()
// and accessors, saving. What does not: sizes and other metadata, and views (view, narrow, transpose, split, detach and
// so on), which are in flight like their base. wait_tensor() waits and returns a plain tensor, on which operators cost
// less: those on a tensor in flight pass through a check, even later on. For device memory, waiting means that the
// current stream waits; the host does not.
//
// Errors: what can be checked at once (sizes, the group, the reduction) throws at the call. If the communication fails,
// the first use throws its error, and every later one too. A result that nobody uses is dropped when its last handle is
// destroyed; if its collective fails, that is logged. The collective itself takes place on all ranks in any case.
//
// Gradients: only the functions that end in _autograd have one. Backward through a result of the others throws
// NotSupportedError; call detach() on their input if no gradient is wanted.
//
// The functions call operators of libtorch (cohort::all_reduce and so on, with the group's id as a string), which
// appear in recordings and in TorchScript, whose optimiser neither removes nor merges them. They also take tensors on
// the meta device, for which they compute sizes and communicate nothing.
//
// Collectives of one group must be called in the same order on all ranks (process_group.h). docs/functional.md is the
// guide.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/export.h>
#include <cohort/process_group.h>
#include <cohort/torch/mesh.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace cohort::functional {

using Tensors = std::vector<at::Tensor>;

/// The group of a collective, in any of these forms:
///
///   functional::all_reduce(x, "sum", pg);                        // a group
///   functional::all_reduce(x, "sum", "dp");                      // a name (group_registry.h) or the id of a group
///   functional::all_reduce(x, "sum", mesh);                      // a mesh of one dimension
///   functional::all_reduce(x, "sum", {mesh, "tp"});              // one dimension of a mesh, by name or index
///   functional::all_reduce(x, "sum", std::vector<int>{0, 1});    // deprecated: the group of these ranks
class COHORT_API GroupArgument {
 public:
  /// Throws ValueError if the group is null.
  explicit(false) GroupArgument(ProcessGroupPtr group);
  explicit(false) GroupArgument(std::nullptr_t) = delete;
  /// Throws Error if there is no such group.
  explicit(false) GroupArgument(std::string_view name);
  explicit(false) GroupArgument(const char* name) : GroupArgument(std::string_view(name)) {}
  explicit(false) GroupArgument(const std::string& name) : GroupArgument(std::string_view(name)) {}
  /// Throws AssertionError if the mesh has several dimensions.
  explicit(false) GroupArgument(const DeviceMesh& mesh) : GroupArgument(only_group(mesh)) {}
  GroupArgument(const DeviceMesh& mesh, const MeshDim& dim)
      : GroupArgument(std::visit([&mesh](const auto& each) { return mesh.group(each); }, dim)) {}
  /// The group whose global_ranks() are these. The current group of this thread goes first, then those registered by
  /// name, then the others. Throws ValueError if there is none, and Error if several in this process have these ranks.
  /// Logs a warning, once: ranks do not say which of several groups is meant.
  explicit(false) GroupArgument(const std::vector<int>& ranks);

  const ProcessGroupPtr& group() const noexcept { return group_; }

 private:
  static ProcessGroupPtr only_group(const DeviceMesh& mesh) {
    if (mesh.ndim() != 1) refuse_dimensions(mesh.ndim());
    return mesh.group(0);
  }
  [[noreturn]] static void refuse_dimensions(std::int64_t ndim);

  ProcessGroupPtr group_;
};

// --- collectives ----------------------------------------------------------------------------------------------------
// Reductions are named as in reduce_op.h, in upper or lower case: "sum", "avg", "max", ... Unknown names are a
// ValueError, and reductions that the dtype does not have a TypeError: complex numbers have sum and avg. Dimensions may
// be negative, counted from the last one.

/// Like the input.
COHORT_API at::Tensor all_reduce(const at::Tensor& tensor, std::string_view reduce_op, const GroupArgument& group);
/// Each tensor by itself, in one operation. They must have the same dtype.
COHORT_API Tensors all_reduce_coalesced(const Tensors& tensors, std::string_view reduce_op, const GroupArgument& group);

/// The inputs of all ranks, in rank order, concatenated in dimension `dim`; those of scalars become a vector. The input
/// must be contiguous (AssertionError). The elements arrive rank by rank: for another dimension than 0 the function
/// waits and puts them in place.
COHORT_API at::Tensor all_gather_tensor(const at::Tensor& tensor, std::int64_t dim, const GroupArgument& group);
/// Along dimension 0.
COHORT_API Tensors all_gather_into_tensor_coalesced(const Tensors& tensors, const GroupArgument& group);

/// The rank's part of the reduction, cut in dimension `dim`. AssertionError if its size is not a multiple of the number
/// of ranks.
COHORT_API at::Tensor reduce_scatter_tensor(const at::Tensor& tensor, std::string_view reduce_op, std::int64_t dim,
                                            const GroupArgument& group);
/// One dimension for each tensor (AssertionError).
COHORT_API Tensors reduce_scatter_tensor_coalesced(const Tensors& tensors, std::string_view reduce_op,
                                                   const std::vector<std::int64_t>& dims, const GroupArgument& group);

/// Sends input_splits[r] rows to rank r, and receives output_splits[r] rows from it. Both lists or none
/// (AssertionError); none: equal parts.
COHORT_API at::Tensor all_to_all_single(const at::Tensor& tensor, const std::vector<std::int64_t>& output_splits,
                                        const std::vector<std::int64_t>& input_splits, const GroupArgument& group);

/// The tensor of rank `src` of the group. All ranks give a tensor of its sizes.
COHORT_API at::Tensor broadcast(const at::Tensor& tensor, std::int64_t src, const GroupArgument& group);

/// Rank r sends its tensor to rank src_dst[r]. The result is the tensor of the rank that sends to this one, like the
/// input; if several do, theirs in rank order, concatenated in dimension 0, and if none does, no rows.
COHORT_API at::Tensor permute_tensor(const at::Tensor& tensor, const std::vector<std::int64_t>& src_dst,
                                     const GroupArgument& group);

/// From tensors that are cut in `gather_dim` to tensors that are cut in `shard_dim`: the result has the inputs of all
/// ranks concatenated in gather_dim, of which it holds this rank's part of shard_dim (AssertionError unless that can be
/// divided). Does not return before the result is there.
COHORT_API at::Tensor shard_dim_alltoall(const at::Tensor& tensor, std::int64_t gather_dim, std::int64_t shard_dim,
                                         const GroupArgument& group);

/// Waits for everything in flight on the tensor's storage, and returns a plain tensor over it: the tensor itself,
/// unless it is a result in flight. Returns at once if there is nothing to wait for. With gradients, if the tensor has
/// some.
COHORT_API at::Tensor wait_tensor(const at::Tensor& tensor);

// --- with a gradient ------------------------------------------------------------------------------------------------
// Every rank must run backward through these, as in forward. Backward waits for its own communication.

/// The gradient is the sum over all ranks of this rank's part.
COHORT_API at::Tensor all_gather_tensor_autograd(const at::Tensor& tensor, std::int64_t dim,
                                                 const GroupArgument& group);
/// The gradient is gathered. Only for "sum" (Error).
COHORT_API at::Tensor reduce_scatter_tensor_autograd(const at::Tensor& tensor, std::string_view reduce_op,
                                                     std::int64_t dim, const GroupArgument& group);
/// The gradient is sent back.
COHORT_API at::Tensor all_to_all_single_autograd(const at::Tensor& tensor,
                                                 const std::vector<std::int64_t>& output_splits,
                                                 const std::vector<std::int64_t>& input_splits,
                                                 const GroupArgument& group);

// --- in place -------------------------------------------------------------------------------------------------------
// These write the given tensors while the communication goes on, and raise their autograd versions. They return tensors
// in flight over the same memory. The given tensors themselves do not know about it: use the returned ones, or call
// wait_tensor() on the given ones first. A tensor that needs a gradient is an Error, unless gradients are off.

COHORT_API at::Tensor all_reduce_(const at::Tensor& tensor, std::string_view reduce_op, const GroupArgument& group);
COHORT_API Tensors all_reduce_coalesced_(const Tensors& tensors, std::string_view reduce_op,
                                         const GroupArgument& group);
COHORT_API at::Tensor broadcast_(const at::Tensor& tensor, std::int64_t src, const GroupArgument& group);
/// all_gather_tensor() along dimension 0 into `out`, whose sizes and dtype must fit (ValueError).
COHORT_API at::Tensor all_gather_into_tensor_out(const at::Tensor& tensor, const GroupArgument& group,
                                                 const at::Tensor& out);

// --- what is in flight ----------------------------------------------------------------------------------------------

/// The number of collectives in this process whose results, plain tensors of the operators or tensors written in place,
/// nobody has waited for. If there are any when the process exits, a warning is logged.
COHORT_API std::size_t unwaited_collectives();

/// While it exists, wait_tensor() also knows the asynchronous operations of process groups that this thread issues on
/// tensors, until they have ended:
///
///   const functional::InflightCollectivesScope scope;
///   auto work = pg->all_reduce(x, {.async_op = true});
///   run(graph, x);                                               // contains wait_tensor(x)
///
/// Scopes nest.
class COHORT_API InflightCollectivesScope {
 public:
  InflightCollectivesScope();
  ~InflightCollectivesScope();
  InflightCollectivesScope(const InflightCollectivesScope&) = delete;
  InflightCollectivesScope& operator=(const InflightCollectivesScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort::functional
