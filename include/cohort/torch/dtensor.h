// SPDX-License-Identifier: BSD-3-Clause
//
// Distributed tensors: one tensor whose parts lie on the ranks of a device mesh.
//
//   auto mesh = cohort::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
//   auto w = cohort::distribute_tensor(weight, mesh["tp"], {cohort::Shard(0)});   // each rank keeps its half
//   auto x = cohort::distribute_tensor(input, mesh["tp"], {cohort::Replicate()});
//   auto y = cohort::DTensor(torch::matmul(x, w.t()));                            // computed on the halves: S(1)
//   auto full = y.redistribute({cohort::Replicate()}).to_local();                 // an all-gather
//
// A DTensor is an at::Tensor of global size: modules, autograd and optimizers work on it as on any tensor. Each
// operator on distributed tensors runs on the local parts by the rule for that operator (docs/dtensor.md lists them
// all; register_dtensor_rule in dtensor_rule.h adds one of your own). A rule redistributes an argument if it must;
// COHORT_DEBUG=detail logs each time that happens, with the bytes. An operator without a rule is a NotSupportedError
// that names the operator and the placements: nothing is gathered in silence.
//
// Every rank of the mesh makes the same calls in the same order, as for collectives. In one operator, distributed and
// plain tensors do not mix, except for plain tensors without dimensions, which count as replicated, and within an
// ImplicitReplication.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <cohort/export.h>
#include <cohort/torch/mesh.h>
#include <cohort/torch/placement.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <vector>

namespace cohort {

/// Whether the tensor is a distributed one.
COHORT_API bool is_dtensor(const at::Tensor& tensor);

struct FromLocalOptions {
  /// Compares the ranks' metadata, which throws ValueError on all of them if they disagree, and broadcasts replicated
  /// parts from the first rank of the mesh dimension, so that they are equal. Costs collectives among the mesh.
  bool run_check = false;
  /// The global sizes and strides, both or neither. By default the parts are taken to be equally large: uneven shards
  /// need the sizes.
  std::optional<std::vector<std::int64_t>> sizes{};
  std::optional<std::vector<std::int64_t>> strides{};
};

struct ToLocalOptions {
  /// How the gradient of the local tensor lies on the mesh, where that differs from the tensor itself; for example
  /// Partial, if each rank uses the replicated tensor for another part of the result. Nothing is communicated in
  /// backward, so a wrong answer is a wrong gradient.
  std::optional<Placements> grad_placements{};
};

struct RedistributeOptions {
  /// Return as soon as the last collective is under way, forward and backward: the first use of the elements waits, as
  /// for the results of functional.h (an operator, to_local().data_ptr(), printing; not to_local() and views). If the
  /// collective fails, that use throws its error. Of a redistribution in several steps only the last collective is
  /// asynchronous.
  bool async_op = false;
  /// The dtype to convert to before communicating forward, and in which to communicate backward; the gradient is
  /// converted back.
  std::optional<at::ScalarType> forward_dtype{};
  std::optional<at::ScalarType> backward_dtype{};
};

/// A tensor that is known to be distributed. It adds no state: a DTensor can be passed as an at::Tensor, and back. So
/// also to torch::autograd::Function::apply().
class COHORT_API DTensor : public at::Tensor {
 public:
  /// Throws TypeError if the tensor is not distributed.
  explicit DTensor(at::Tensor tensor);

  /// Wraps this rank's part without copying it or communicating. Differentiable: the gradient of `local` is local. A
  /// missing mesh is the current one (mesh.h); missing placements are Replicate on every dimension. On a rank outside
  /// the mesh the part is empty.
  static DTensor from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements = {},
                            const FromLocalOptions& options = {});
  static DTensor from_local(const at::Tensor& local);

  const DeviceMesh& device_mesh() const;
  const Placements& placements() const;

  /// This rank's part, which shares memory with the tensor. Differentiable, without communication.
  at::Tensor to_local(const ToLocalOptions& options = {}) const;
  /// The whole tensor, on every rank. Differentiable.
  at::Tensor full_tensor() const;
  /// The same tensor with other placements, by the cheapest collectives. Differentiable. Partial is a target only where
  /// the tensor already is that Partial.
  DTensor redistribute(Placements placements, const RedistributeOptions& options = {}) const;
};

struct DistributeOptions {
  /// The index, on each mesh dimension, of the rank whose tensor is distributed; nullopt: every rank takes its part of
  /// its own tensor, which must be equal on all ranks, and nothing is communicated.
  std::optional<std::int64_t> src_data_rank = 0;
};

/// Distributes the tensor of one rank (rank 0 of each mesh dimension by default): scatters for Shard, broadcasts for
/// Replicate. The tensor must be a leaf; requires_grad is kept. A tensor that is distributed already must have exactly
/// this mesh and these placements.
COHORT_API DTensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, Placements placements = {},
                                     const DistributeOptions& options = {});

/// redistribute() for tensors that are distributed; plain tensors are returned as they are. With it one source of a
/// model works on both: it says how its intermediate results should lie.
COHORT_API at::Tensor constrain(const at::Tensor& tensor, Placements placements);

/// While it exists, plain tensors count as replicated ones in operators that this thread calls with distributed
/// tensors. They must then be equal on all ranks, which is not checked. For masks and positions that a model makes in
/// forward. A plain tensor that requires gradients is still refused: its gradient would be a distributed tensor. Call
/// backward within it as well, since masks are used there again.
class COHORT_API ImplicitReplication {
 public:
  ImplicitReplication();
  ~ImplicitReplication();
  ImplicitReplication(const ImplicitReplication&) = delete;
  ImplicitReplication& operator=(const ImplicitReplication&) = delete;

 private:
  c10::DebugInfoGuard scope_;
};

/// "[S(0), R] on DeviceMesh(...), this rank's part:" and the part. Printing an at::Tensor that is distributed is an
/// error of libtorch, which finds no data in it.
COHORT_API std::ostream& operator<<(std::ostream& out, const DTensor& tensor);

/// Factories: no rank makes more than its part.
namespace dtensor {
COHORT_API DTensor empty(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                         const at::TensorOptions& options = {});
COHORT_API DTensor zeros(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                         const at::TensorOptions& options = {});
COHORT_API DTensor ones(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                        const at::TensorOptions& options = {});
COHORT_API DTensor full(at::IntArrayRef sizes, const at::Scalar& value, const DeviceMesh& mesh,
                        Placements placements = {}, const at::TensorOptions& options = {});
COHORT_API DTensor rand(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                        const at::TensorOptions& options = {});
COHORT_API DTensor randn(at::IntArrayRef sizes, const DeviceMesh& mesh, Placements placements = {},
                         const at::TensorOptions& options = {});

/// Random numbers (rand, randn, dropout, uniform_, ...) are equal on ranks that hold the same elements and independent
/// on the others. The seed of a mesh is taken from the default generator of its first rank at the first draw; this sets
/// another one, equal on all ranks, and begins the sequence anew. Nothing is communicated.
COHORT_API void manual_seed(std::uint64_t seed, const DeviceMesh& mesh);
}  // namespace dtensor

}  // namespace cohort

/// What Function::apply() finds its variables with: by itself it takes at::Tensor alone, and an argument of a derived
/// type would have no gradient.
template <>
inline void torch::autograd::ExtractVariables::operator()(const cohort::DTensor& x) {
  (*this)(static_cast<const at::Tensor&>(x));
}
