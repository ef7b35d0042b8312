// SPDX-License-Identifier: BSD-3-Clause
//
// What several families of rules have in common.
#pragma once

#include "torch/dtensor/rule.h"

namespace cohort::dtensor {

/// The sizes to which all tensor arguments broadcast. What is written must have them already; those of an `out`
/// argument do not count.
c10::DimVector broadcast_sizes(const OpCall& call);

/// Everything replicated; or one dimension of the result sharded, with each argument that has it sharded there too.
Strategies broadcast_strategies(const OpCall& call, at::IntArrayRef result);

/// The reductions of the Partial placements among the arguments, without repetitions; usually none.
c10::SmallVector<Placement::Reduction, 2> partial_reductions_of(const OpCall& call);

/// Whether linear operators commute with the reduction.
inline bool is_sum(Placement::Reduction reduction) {
  return reduction == Placement::Reduction::sum || reduction == Placement::Reduction::avg;
}

/// The strategy in which everything is replicated.
inline Strategy all_replicated(const OpCall& call, std::size_t results = 1) {
  return {.arguments = PlacementVector(call.tensors().size(), Replicate()),
          .results = PlacementVector(results, Replicate())};
}

/// Whether some rank may hold no part of this dimension if it is sharded: reductions like max have no value there.
bool may_leave_ranks_empty(const TensorArgument& tensor, std::int64_t dim);

/// The mesh dimensions that shard this tensor dimension among several ranks. One rank alone holds it whole.
using MeshDims = c10::SmallVector<std::int64_t, 2>;
MeshDims mesh_dims_that_cut(const Layout& layout, std::int64_t dim);

/// The layout of a tensor that every rank of the mesh holds.
LayoutPtr replicated_layout(const DeviceMesh& mesh);

/// Whether the argument asks for the row-major memory format.
inline bool is_contiguous_format(const c10::IValue& format) {
  return !format.isNone() && format.toMemoryFormat() == at::MemoryFormat::Contiguous;
}

/// The dtype in which numbers of this one are summed up: kernels sum half precision in single.
inline at::ScalarType sum_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

/// Whether this rank is in the mesh: outside, the parts are empty and nothing is computed.
inline bool takes_part(const OpCall& call) {
  return call.mesh().coordinate() != nullptr;
}

}  // namespace cohort::dtensor
