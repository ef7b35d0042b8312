// SPDX-License-Identifier: BSD-3-Clause
//
// A recorded step as it is replayed: instructions over numbered values. cohort/torch/graph.h has what users see of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <cohort/issue_observer.h>
#include <cohort/operation.h>
#include <cohort/process_group.h>
#include <cohort/torch/graph.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "torch/capture/source_lines.h"
#include "torch/capture/tensor_table.h"
#include "torch/dtensor/layout.h"

namespace cohort::recording {

/// A tensor among the arguments or results of an operator.
struct TensorPlace {
  std::size_t position;  ///< of the argument or result
  int in_list;           ///< -1 if it is a tensor itself
  ValueId value;
};

/// A number that the host gives at each replay.
struct HostNumber {
  std::size_t position;
  std::function<c10::Scalar()> function;
  bool is_tensor;  ///< libtorch has made a tensor without dimensions of it
};

/// Memory of a collective, within a value.
struct Piece {
  ValueId value;
  std::size_t offset;
  std::size_t bytes;
};

struct Collective {
  Operation operation;  ///< without memory
  std::vector<Piece> ins;
  std::vector<Piece> outs;
  IssueOptions options;
  std::vector<Collective> members;
};

/// Code of the user on tensors (capture_hook.h), whose operators are not recorded.
struct OpaqueCall {
  /// What it returned in one place: nothing, one of its arguments, or another tensor.
  struct Returned {
    bool is_undefined = false;
    std::optional<std::size_t> input{};
    friend bool operator==(const Returned&, const Returned&) = default;
  };
  std::string name;
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> function;
  std::size_t inputs = 0;  ///< some of which may be undefined
  std::vector<Returned> returned{};
};

/// A call on a distributed tensor that is one node of the graph, whatever it consists of.
struct DistributedCall {
  std::string name;
  std::vector<GraphOperand> constants;
  friend bool operator==(const DistributedCall&, const DistributedCall&) = default;
};

/// An operator of libtorch, called with the kernel that ran.
struct OperatorCall {
  c10::OperatorHandle op;
  c10::DispatchKeySet keys;
  std::vector<c10::IValue> arguments{};  ///< None where there is a tensor
  std::vector<HostNumber> host_numbers{};
  ProcessGroupPtr group{};   ///< that it names
  bool is_blocking = false;  ///< if it names a group
  bool is_wait = false;      ///< for a tensor in flight
};

/// An operation that was issued on a group.
struct CollectiveCall {
  ProcessGroupPtr group;
  std::shared_ptr<const Collective> collective;
  std::optional<std::size_t> flight{};  ///< a number for an asynchronous one and the wait for it
};

struct CollectiveWait {
  ProcessGroupPtr group;
  std::size_t flight;
};

struct HostCall {
  std::function<void()> function;
};

struct Instruction {
  /// Nothing: a pass has taken it away. A DistributedCall: it begins here, and does nothing itself.
  using Action =
      std::variant<std::monostate, OperatorCall, CollectiveCall, CollectiveWait, HostCall, OpaqueCall, DistributedCall>;
  Action action{};
  std::vector<TensorPlace> tensors{};  ///< of an operator's arguments, or an opaque call's
  std::vector<TensorPlace> results{};
  std::vector<ValueId> reads{};
  std::vector<ValueId> writes{};
  std::size_t region = 0;  ///< a number for a DistributedCall and what it consists of; 0 outside of them
  CallStack calls{};       ///< empty unless source lines are wanted

  /// The action if it is of this type, or null.
  template <class Type>
  const Type* as() const noexcept {
    return std::get_if<Type>(&action);
  }
  template <class Type>
  Type* as() noexcept {
    return std::get_if<Type>(&action);
  }
};

GraphNode::Kind kind_of(const Instruction& instruction);
/// The group of a collective and of its wait, or null.
ProcessGroupPtr group_of(const Instruction& instruction);

struct Value {
  GraphValue shown;
  std::size_t storage = 0;
  at::Tensor constant{};  ///< for GraphValue::Origin::constant
  bool has_two_names =
      false;  ///< an argument that is a parameter or a gradient as well, or a gradient of two parameters
  bool is_of_recorder = false;  ///< a constant that stands for memory of a group, which it holds
};

/// A tensor that the step leaves to its caller: a value, or the distributed tensor whose local part it is.
struct LeftTensor {
  std::optional<ValueId> value{};  ///< nullopt: the tensor is undefined
  dtensor::LayoutPtr layout{};     ///< null: a plain tensor
  std::vector<std::int64_t> sizes{};
  std::vector<std::int64_t> strides{};
  friend bool operator==(const LeftTensor& a, const LeftTensor& b) {
    const bool lies_alike = a.layout == b.layout || (a.layout && b.layout && dtensor::equal(a.layout, b.layout));
    return a.value == b.value && lies_alike && a.sizes == b.sizes && a.strides == b.strides;
  }
};

/// What a watched parameter has as gradient when the step has ended.
struct FinalGradient {
  std::size_t parameter;
  LeftTensor tensor;
};

struct Program {
  std::vector<Value> values{};
  std::vector<Instruction> instructions{};
  std::vector<ValueId> arguments{};                 ///< in the order of the call's tensors
  std::vector<std::optional<ValueId>> gradients{};  ///< at the beginning, of each watched parameter
  std::vector<FinalGradient> final_gradients{};
  std::vector<LeftTensor> outputs{};
  std::vector<ProcessGroupPtr> groups{};
  std::size_t flights = 0;  ///< asynchronous collectives on groups
};

/// For each value, whether an instruction or the caller uses it.
std::vector<bool> used_values(const Program& program);
/// For each value, whether the step uses it and, as another tensor that existed before, memory that it lies in.
std::vector<bool> lie_in_shared_memory(const Program& program, const std::vector<bool>& is_used);

/// As users see it.
Graph graph_of(const Program& program);
/// Its collectives alone.
Graph communication_of(const Program& program);

}  // namespace cohort::recording
