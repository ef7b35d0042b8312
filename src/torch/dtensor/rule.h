// SPDX-License-Identifier: BSD-3-Clause
//
// Operator rules. A rule answers, for one dimension of a mesh: if the arguments lie so, and the operator runs on the
// local parts, how does the result lie? Each such answer is a Strategy. For mm(a, b) they are
// ```text
//   a      b      result
//   R      R      R
//   S(0)   R      S(0)         the rows of a
//   R      S(1)   S(1)         the columns of b
//   S(1)   S(0)   P(sum)       every rank a part of the inner dimension
//   P      R      P            linear in a
//   R      P      P
// ```
// For each mesh dimension the strategy is chosen that fits the arguments as they lie, or else the one whose
// redistributions move the fewest bytes. Then the arguments are redistributed if they must be, the operator runs on the
// local parts, and its results are wrapped.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/DimVector.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "torch/dtensor/impl.h"

namespace cohort::dtensor {

using PlacementVector = c10::SmallVector<Placement, 4>;

struct Strategy {
  PlacementVector arguments;  ///< of OpCall::tensors(), in their order
  PlacementVector results;
};
using Strategies = c10::SmallVector<Strategy, 8>;
using SizesList = c10::SmallVector<c10::DimVector, 2>;

struct Rule;

/// What does not depend on the arguments of a call.
struct OpInfo {
  const Rule* rule = nullptr;
  std::size_t arguments = 0;
  std::size_t results = 0;
  /// For each argument: whether the operator writes it. For each result: the written argument that it is, or -1.
  std::vector<bool> writes{};
  /// Whether a result shares memory with an argument that is not written.
  bool returns_view = false;
  std::vector<int> result_is_argument{};
};

/// A tensor among the arguments.
struct TensorArgument {
  std::size_t position = 0;  ///< which argument
  int in_list = -1;          ///< the index within a list of tensors; -1: not in a list
  /// Null for a plain tensor without dimensions, which counts as replicated.
  const DTensorImpl* impl = nullptr;
  at::IntArrayRef sizes{};
  at::IntArrayRef strides{};
  bool is_written = false;  ///< by an in-place or out= operator: it cannot be redistributed
};
using TensorArguments = c10::SmallVector<TensorArgument, 4>;

/// One call of an operator that has distributed tensors among its arguments.
class OpCall {
 public:
  OpCall(const c10::OperatorHandle& op, const OpInfo& info, torch::jit::Stack& stack);
  OpCall(const OpCall&) = delete;
  OpCall& operator=(const OpCall&) = delete;

  const c10::OperatorHandle& op() const noexcept { return op_; }
  const OpInfo& info() const noexcept { return info_; }
  std::string name() const;

  /// The defined tensors, in the order of the arguments, those in lists included.
  const TensorArguments& tensors() const noexcept { return tensors_; }
  const DeviceMesh& mesh() const noexcept { return layout().mesh; }
  /// That of the first distributed tensor.
  const Layout& layout() const noexcept { return *first_->layout(); }
  const LayoutPtr& layout_pointer() const noexcept { return first_->layout(); }

  /// Whether the first distributed tensor was made in inference mode.
  bool is_inference() const noexcept { return !first_->key_set().has(c10::DispatchKey::ADInplaceOrView); }

  /// Arguments that are not tensors, by position. Rules may replace them before the operator runs on the local parts.
  c10::IValue& argument(std::size_t position) { return stack_[begin_ + position]; }
  const c10::IValue& argument(std::size_t position) const { return stack_[begin_ + position]; }
  std::size_t arguments() const noexcept { return arguments_; }

  /// A distributed tensor among the arguments by its position, or null.
  const DTensorImpl* find(std::size_t position) const noexcept;

  // --- how a rule proceeds: choose, then run, then wrap ---------------------------------------------------------------
  /// Puts the local part in place of each tensor argument, redistributed to `targets[i]` if it does not lie so.
  void localize(std::span<const LayoutPtr> targets);
  /// The same without any redistribution.
  void localize_as_they_are();
  /// Runs the operator on what is on the stack. On a rank outside the mesh the results are empty tensors; their dtypes
  /// are found by running the operator on tensors of one element, unless it is a view, in place or of a rule of the
  /// user's.
  void run_local();
  /// On a rank outside the mesh: runs the operator on zeros of these sizes, one list for each tensor. Where the sizes
  /// of the results follow from what the operator computes, it says so.
  void run_on_zeros(std::span<const c10::DimVector> sizes);
  /// Outside the mesh: makes the results empty.
  void empty_results();
  /// Puts a tensor with the local result `i` in its place. A result that is a written argument becomes that argument.
  /// Results are row-major.
  void wrap_results(std::span<const LayoutPtr> layouts, std::span<const c10::DimVector> sizes);
  /// The same for one result with these strides.
  void wrap_result(const LayoutPtr& layout, at::IntArrayRef sizes, at::IntArrayRef strides);
  /// Takes the arguments off the stack and puts the results of a rule that ran something else there.
  void finish(std::vector<c10::IValue> results);

  /// A local result, after run_local().
  const c10::IValue& result(std::size_t i) const { return stack_[stack_.size() - info_.results + i]; }
  /// The argument that was given, after localize().
  const c10::IValue& given(std::size_t position) const;
  /// Takes the one result off the stack.
  at::Tensor take_result();
  c10::List<at::Tensor> take_list_result();

  /// After a view: a view of a copied view (impl.h) must not be written either. What is detached from one may be:
  /// autograd keeps gradients so, and adds to them.
  void mark_views_of_copies();

  at::Tensor local_of(const TensorArgument& argument, const LayoutPtr& target) const;
  /// Throws NotSupportedError with the operator's name, the arguments' placements, and `why`.
  [[noreturn]] void refuse(std::string_view why) const;
  /// The same as a ValueError: the arguments would not fit either if they were dense.
  [[noreturn]] void refuse_sizes(std::string_view why) const;

 private:
  std::string described(std::string_view why) const;
  /// Puts a plain tensor in the place of an argument. A list on the stack is ours by then.
  void put(const TensorArgument& argument, at::Tensor tensor);
  /// Fills in tensors_. Returns the sizes of a plain tensor that cannot be among the arguments, if there is one.
  std::optional<at::IntArrayRef> collect();

  const c10::OperatorHandle& op_;
  const OpInfo& info_;
  torch::jit::Stack& stack_;
  std::size_t begin_;
  std::size_t arguments_;
  TensorArguments tensors_;
  const DTensorImpl* first_ = nullptr;
  /// What localize() has replaced. It stays alive: tensors_ refers to it, and a written argument is returned.
  struct Given {
    std::size_t position;
    c10::IValue value;
  };
  c10::SmallVector<Given, 4> given_;
};

using RuleFunction = std::function<void(OpCall&)>;
using SizeCheck = void (*)(const OpCall&);

struct Rule {
  std::string_view family;  ///< as in the table of docs/dtensor.md
  RuleFunction run;
  SizeCheck check = nullptr;  ///< called before it; may be null (rules/sizes.h)
};

// --- what most rules are made of --------------------------------------------------------------------------------------

/// The layouts that the arguments must have and the results get.
struct Decision {
  c10::SmallVector<LayoutPtr, 4> arguments;
  c10::SmallVector<LayoutPtr, 2> results;
};
/// Chooses among the strategies, for each mesh dimension. Refuses if none applies. Each strategy shards one dimension
/// of what is computed, and is taken to hold for strided shards as well, unless `takes_strided` is false because the
/// rule needs to know where a part begins.
Decision choose(const OpCall& call, const Strategies& strategies, bool takes_strided = true);

/// Chooses, localizes, runs and wraps.
void run_by_strategies(OpCall& call, const Strategies& strategies, const SizesList& result_sizes);

/// Normalizes a dimension that may be negative; throws as libtorch does for one that is not there. A tensor without
/// dimensions takes 0 and -1, and the result is then 0.
inline std::int64_t wrapped_dim(std::int64_t dim, std::size_t dims) {
  return c10::maybe_wrap_dim(dim, static_cast<std::int64_t>(dims));
}
/// The same for operators that do not take tensors without dimensions.
inline std::int64_t existing_dim(std::int64_t dim, std::size_t dims) {
  return c10::maybe_wrap_dim(dim, static_cast<std::int64_t>(dims), false);
}

}  // namespace cohort::dtensor
