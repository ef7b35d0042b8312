// SPDX-License-Identifier: BSD-3-Clause
#include "torch/capture/recorder.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/from_blob.h>
#include <cohort/torch/capture_error.h>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "group/issue_notifier.h"
#include "torch/capture/graph_values.h"
#include "torch/capture/instruction_name.h"
#include "torch/capture/opaque.h"
#include "torch/capture/operator_traits.h"
#include "torch/capture/refusals.h"
#include "torch/capture/waits.h"
#include "torch/dispatch/fallback.h"
#include "torch/dtensor/impl.h"
#include "torch/functional/async_tensor.h"
#include "torch/functional/issuing_group.h"

namespace cohort::recording {

namespace {

/// How the recorder is carried from thread to thread: see ImplicitReplication, whose kind is the other one that libtorch
/// leaves alone.
struct ActiveRecorder : c10::DebugInfoBase {
  static constexpr auto kind = c10::DebugInfoKind::TEST_INFO;
  explicit ActiveRecorder(Recorder& active) : recorder(active) {}
  Recorder& recorder;
};

at::Device torch_device(const Device& device) {
  return {device.type == DeviceType::cuda ? at::kCUDA : at::kCPU, static_cast<c10::DeviceIndex>(device.index)};
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage();
}

/// A number that libtorch has made a tensor without dimensions of.
bool is_wrapped_number(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

/// Autograd may keep the number for backward, which would have that of the recording.
void refuse_gradient_with_number(const torch::jit::Stack& stack, std::size_t begin, const HostArgument& scope,
                                 const c10::OperatorHandle& op) {
  const auto has_gradient = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad();
  };
  if (!at::GradMode::is_enabled() ||
      std::none_of(stack.begin() + static_cast<std::ptrdiff_t>(begin), stack.end(), has_gradient)) {
    return;
  }
  throw CaptureError(CaptureRefusal::changing_number,
                     fmt::format("{} with the HostArgument \"{}\"", name_of(op), scope.name()),
                     "its backward may need the number, and a replay would use that of the recording",
                     {"Use a HostArgument without gradients (torch::NoGradGuard), as optimizers do.",
                      "A number that takes part in forward can be a tensor that is an argument of the step."});
}

constexpr std::string_view host_write_hint =
    "Make the tensor before the step and pass it as an argument, or fill it with an operator (torch::full, copy_).";

}  // namespace

at::Tensor plain_part(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (const auto* const distributed = dtensor::find_impl(tensor)) return plain_part(distributed->local());
  if (const auto* const async = functional::find_async(tensor)) return async->wait();
  return tensor;
}

Recorder::Recorder(std::span<const at::Tensor> arguments, std::vector<WatchedTensor> parameters, Options options)
    : parameters_(std::move(parameters)), options_(options) {
  for (const auto& each : arguments) {
    const auto plain = plain_part(each);
    if (!plain.defined()) {
      program_.arguments.push_back(program_.values.size());
      program_.values.emplace_back();
      continue;
    }
    if (!is_plain(plain)) {
      throw CaptureError(CaptureRefusal::unsupported_call, "an argument that is sparse or has no memory",
                         "a recording knows tensors by their memory", {"Pass dense tensors."});
    }
    // The same tensor twice is one value, but has two places in the call.
    const auto known = table_.find(plain);
    program_.arguments.push_back(known ? *known : add_value(plain, GraphValue::Origin::argument));
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto is_it = [&](const WatchedTensor& each) { return each.tensor.is_same(arguments[i]); };
    if (std::none_of(parameters_.begin(), parameters_.end(), is_it)) leaves_.add(arguments[i], i + 1);
  }
  for (const auto& each : parameters_) {
    const auto gradient = plain_part(each.tensor.grad());
    if (!gradient.defined()) {
      program_.gradients.push_back(std::nullopt);
      continue;
    }
    const auto known = table_.find(gradient);
    program_.gradients.push_back(known ? *known
                                       : add_value(gradient, GraphValue::Origin::gradient, each.name + ".grad"));
  }
  for (const auto& each : parameters_) {
    const auto parameter = plain_part(each.tensor);
    if (!parameter.defined() || table_.find(parameter)) continue;
    program_.values[add_constant(parameter)].shown.name = each.name;
  }
}

Recorder* Recorder::active() noexcept {
  if (!c10::impl::tls_is_dispatch_key_included(wrapper_key)) return nullptr;
  const auto* const active = dynamic_cast<ActiveRecorder*>(c10::ThreadLocalDebugInfo::get(ActiveRecorder::kind));
  return active == nullptr ? nullptr : &active->recorder;
}

ValueId Recorder::add_value(const at::Tensor& tensor, GraphValue::Origin origin, std::string name) {
  const auto value = program_.values.size();
  const auto lifetime =
      origin == GraphValue::Origin::result ? TensorTable::Lifetime::step : TensorTable::Lifetime::permanent;
  table_.add(tensor, value, lifetime);
  program_.values.push_back(
      {.shown = graph_value_of(tensor, origin, std::move(name)), .storage = table_.storage_of(tensor)});
  return value;
}

ValueId Recorder::add_constant(const at::Tensor& tensor) {
  const auto value = add_value(tensor, GraphValue::Origin::constant);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(wrapper_key);
  // An object of its own: the user's may be given other memory.
  program_.values[value].constant = tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : at::alias(tensor);
  return value;
}

ValueId Recorder::add_alias(const at::Tensor& tensor, const TensorTable::Place& base) {
  static const auto as_strided = c10::Dispatcher::singleton().findSchemaOrThrow("aten::as_strided", "");
  const auto& from = program_.values[base.value].shown;
  if (from.dtype != dtype_name(tensor.scalar_type())) {
    throw CaptureError(CaptureRefusal::unsupported_call, tensor_text(tensor),
                       "it shows the memory of a tensor with another dtype, without an operator that made it", {});
  }
  Instruction instruction{.op = as_strided,
                          .keys = tensor.key_set() & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, wrapper_key)};
  instruction.arguments = {c10::IValue(), tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()};
  instruction.tensors.push_back({.position = 0, .in_list = -1, .value = base.value});
  instruction.reads.push_back(base.value);
  const auto value = add_value(tensor, GraphValue::Origin::result);
  instruction.results.push_back({.position = 0, .in_list = -1, .value = value});
  add(std::move(instruction));
  return value;
}

ValueId Recorder::value_of(const at::Tensor& tensor, std::string_view used_by) {
  if (!is_plain(tensor)) {
    throw CaptureError(CaptureRefusal::unsupported_operator, fmt::format("{} with {}", used_by, tensor_text(tensor)),
                       "a recording knows tensors by their memory, and this one is sparse, quantized or has none",
                       {"Use dense tensors in the step."});
  }
  if (const auto known = table_.find(tensor)) return *known;
  if (tensor.numel() > 0) {
    if (const auto place = table_.find_memory(tensor)) return add_alias(tensor, *place);
  }
  return add_constant(tensor);
}

Instruction Recorder::describe(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                               const torch::jit::Stack& stack) {
  Instruction instruction{.op = op, .keys = keys};
  const auto& arguments = op.schema().arguments();
  const auto begin = stack.size() - arguments.size();
  const auto& traits = traits_of(op);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = stack[begin + i];
    const auto* const alias = arguments[i].alias_info();
    const auto& quiet = traits.quietly_written;
    const bool is_written = (alias != nullptr && alias->isWrite()) || traits.written_argument == i ||
                            std::find(quiet.begin(), quiet.end(), i) != quiet.end();
    const auto place = [&](const at::Tensor& tensor, int in_list) {
      const auto id = value_of(tensor, op.operator_name().name);
      if (!is_written && traits.reads_elements && tensor.numel() > 0 && table_.is_uninitialized(tensor)) {
        throw CaptureError(
            CaptureRefusal::host_write,
            fmt::format("{}, argument {}: {}", name_of(op), arguments[i].name(), tensor_text(tensor)),
            "no operator of the step has written this memory: the host did, through a pointer, and a replay would not",
            {std::string(host_write_hint)});
      }
      instruction.tensors.push_back({.position = i, .in_list = in_list, .value = id});
      (is_written ? instruction.writes : instruction.reads).push_back(id);
    };
    if (is_wrapped_number(value) && HostArgument::is_given(arguments[i].name())) {
      instruction.arguments.emplace_back();  // bind_host_numbers() gives it
    } else if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (tensor.defined()) place(tensor, -1);
      instruction.arguments.push_back(tensor.defined() ? c10::IValue() : value);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      auto list = value.toList().copy();
      for (std::size_t k = 0; k < list.size(); ++k) {
        const c10::IValue element = list.get(k);
        if (!element.isTensor() || !element.toTensor().defined()) continue;
        place(element.toTensor(), static_cast<int>(k));
        list.set(k, at::Tensor());
      }
      instruction.arguments.emplace_back(std::move(list));
    } else {
      instruction.arguments.push_back(value);
    }
  }
  return instruction;
}

void Recorder::bind_host_numbers(Instruction& instruction, const torch::jit::Stack& stack) {
  const auto& arguments = instruction.op->schema().arguments();
  const auto begin = stack.size() - arguments.size();
  for (const auto* scope = HostArgument::innermost(); scope != nullptr; scope = scope->outer()) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != scope->name()) continue;
      const auto& value = stack[begin + i];
      const bool is_tensor = is_wrapped_number(value);
      if (!is_tensor && !value.isScalar()) continue;
      const auto given = is_tensor ? value.toTensor().item() : value.toScalar();
      if (given.toComplexDouble() != scope->value().toComplexDouble()) {
        throw CaptureError(CaptureRefusal::unsupported_call,
                           fmt::format("{}, argument {}", name_of(*instruction.op), scope->name()),
                           "the operator was called with another number than the HostArgument of this name has",
                           {"Call the operator with value() of the HostArgument."});
      }
      refuse_gradient_with_number(stack, begin, *scope, *instruction.op);
      instruction.host_numbers.push_back({.position = i, .function = scope->function(), .is_tensor = is_tensor});
    }
  }
}

void Recorder::add_results(Instruction& instruction, const torch::jit::Stack& stack) {
  const auto& op = *instruction.op;
  const auto& returns = op.schema().returns();
  const auto begin = stack.size() - returns.size();
  const auto add = [&](const at::Tensor& tensor, std::size_t position, int in_list) {
    if (!tensor.defined()) return;
    if (!is_plain(tensor)) {
      throw CaptureError(CaptureRefusal::unsupported_operator,
                         fmt::format("{}, which returns {}", name_of(op), tensor_text(tensor)),
                         "a recording knows tensors by their memory, and the result is sparse, quantized or has none",
                         {"Use dense tensors in the step."});
    }
    if (table_.find(tensor)) return;
    const auto value = add_value(tensor, GraphValue::Origin::result);
    instruction.results.push_back({.position = position, .in_list = in_list, .value = value});
    if (traits_of(op).returns_uninitialized) table_.mark_uninitialized(tensor);
  };
  for (std::size_t i = 0; i < returns.size(); ++i) {
    const auto& value = stack[begin + i];
    if (value.isTensor()) {
      add(value.toTensor(), i, -1);
    } else if (value.isTensorList()) {
      int index = 0;
      for (const at::Tensor& each : value.toTensorVector()) add(each, i, index++);
    }
  }
}

template <class Function>
void Recorder::record(const Function& function) {
  const std::lock_guard lock(mutex_);
  if (refusal_) return;
  try {
    function();
  } catch (const CaptureError& refusal) {
    if (options_.on_refusal == OnRefusal::throws) throw;
    refusal_ = refusal;
  }
}

void Recorder::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Instruction instruction;
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(wrapper_key);
  std::vector<at::Tensor> written;
  record([&] {
    if (const auto* const refusal = refusal_of(op, *stack)) throw error_of(*refusal, call_text(op, *stack));
    instruction = describe(op, keys, *stack);
    bind_host_numbers(instruction, *stack);
    name_group(instruction, *stack);
    written = written_tensors(instruction, *stack);
  });
  {
    const IssueObserver unobserved({});  // the operator is the instruction, whatever it does on groups
    op.redispatchBoxed(keys, stack);
  }
  record([&] {
    add_results(instruction, *stack);
    for (const auto& each : written) table_.mark_written(each);
    // A view that shows what is a value already, such as detach(), has nothing to replay, and neither has a question of
    // the host (equal) that the recording answers for all replays.
    if (instruction.results.empty() && instruction.writes.empty() &&
        (traits_of(op).is_view || traits_of(op).is_query)) {
      return;
    }
    add(std::move(instruction));
  });
}

void Recorder::name_group(Instruction& instruction, const torch::jit::Stack& stack) {
  const auto& traits = traits_of(*instruction.op);
  if (traits.is_wait) instruction.kind = GraphNode::Kind::wait;
  if (!traits.group_argument) return;
  const auto first = stack.size() - instruction.arguments.size();
  const auto issuer = functional::issuer_named(stack[first + *traits.group_argument].toStringRef());
  instruction.kind = GraphNode::Kind::collective;
  instruction.group = issuer.group.shared_from_this();
  instruction.is_blocking = issuer.is_blocking;
  add_group(instruction.group);
}

std::vector<at::Tensor> Recorder::written_tensors(const Instruction& instruction, const torch::jit::Stack& stack) {
  std::vector<at::Tensor> written;
  const auto& writes = instruction.writes;
  const auto first = stack.size() - instruction.arguments.size();
  for (const auto& each : instruction.tensors) {
    if (std::find(writes.begin(), writes.end(), each.value) == writes.end()) continue;
    const auto& value = stack[first + each.position];
    written.push_back(each.in_list < 0 ? value.toTensor()
                                       : value.toListRef()[static_cast<std::size_t>(each.in_list)].toTensor());
  }
  return written;
}

void Recorder::add_group(const ProcessGroupPtr& group) {
  auto& groups = program_.groups;
  if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
}

Piece Recorder::piece_of(const std::byte* begin, std::size_t bytes, const Operation& op, const Issue& issue) {
  if (const auto place = table_.find_memory(begin, bytes)) {
    return {.value = place->value, .offset = place->offset, .bytes = bytes};
  }
  const ConstBuffer* buffer = nullptr;
  const auto look = [&](const ConstBuffer& each) {
    const auto* const data = static_cast<const std::byte*>(each.data());
    if (data <= begin && begin + bytes <= data + each.bytes()) buffer = &each;
  };
  for (const auto& each : op.input_buffers) look(each);
  for (const auto& each : op.output_buffers) look(each);
  if (buffer == nullptr || buffer->keep_alive() == nullptr) {
    throw CaptureError(CaptureRefusal::unsupported_call,
                       fmt::format("{} on group {} with {} bytes of memory that is no tensor", to_string(op.type),
                                   issue.group.id(), bytes),
                       "a replay would use the same memory, which may not exist any more",
                       {"Use tensors in the step."});
  }
  const auto blob = at::from_blob(
      const_cast<void*>(buffer->data()), {static_cast<std::int64_t>(buffer->bytes())},
      [held = buffer->keep_alive()](void* /*data*/) {},
      at::TensorOptions(at::kByte).device(torch_device(buffer->device())));
  const auto value = add_value(blob, GraphValue::Origin::constant);
  program_.values[value].constant = blob;
  return {.value = value,
          .offset = static_cast<std::size_t>(begin - static_cast<const std::byte*>(buffer->data())),
          .bytes = bytes};
}

Collective Recorder::collective_of(const Operation& op, const Issue& issue, Instruction& instruction) {
  Collective collective{.operation = {.type = op.type,
                                      .dtype = op.dtype,
                                      .reduce = op.reduce,
                                      .root = op.root,
                                      .peer = op.peer,
                                      .tag = op.tag,
                                      .layout = op.layout},
                        .ins = {},
                        .outs = {},
                        .options = issue.options,
                        .members = {}};
  for (const auto& each : op.ins) collective.ins.push_back(piece_of(each.data(), each.size(), op, issue));
  for (const auto& each : op.outs) {
    collective.outs.push_back(piece_of(each.data(), each.size(), op, issue));
    table_.mark_written(each.data());
  }
  for (const auto& each : collective.ins) instruction.reads.push_back(each.value);
  for (const auto& each : collective.outs) instruction.writes.push_back(each.value);
  for (const auto& each : op.members) collective.members.push_back(collective_of(each, issue, instruction));
  return collective;
}

void Recorder::observe(const Issue& issue) {
  const c10::impl::ExcludeDispatchKeyGuard unrecorded(wrapper_key);
  record([&] {
    if (!issue.host_function.empty()) {
      throw CaptureError(CaptureRefusal::unsupported_call,
                         fmt::format("{}() on group {}", issue.host_function, issue.group.id()),
                         "its result is for the host (bytes, a group, an error), and a replay would not run what the "
                         "host does with it",
                         {"Call it before the step or after it; groups and meshes are made before the step.",
                          "Exchange what the step itself needs as tensors, by a collective."});
    }
    Instruction instruction{.kind = GraphNode::Kind::collective, .group = issue.group.shared_from_this()};
    instruction.collective = std::make_shared<const Collective>(collective_of(issue.op, issue, instruction));
    if (issue.options.async_op) {
      instruction.flight = program_.flights++;
      in_flight_.push_back({.work = issue.work, .instruction = program_.instructions.size()});
    }
    add_group(instruction.group);
    add(std::move(instruction));
  });
}

void Recorder::observe_wait(const Work& work) {
  record([&] {
    const auto flight = std::find_if(in_flight_.begin(), in_flight_.end(),
                                     [&](const Flight& each) { return each.work.is_same_operation(work); });
    if (flight == in_flight_.end()) return;
    add(wait_for(program_.instructions[flight->instruction]));
    in_flight_.erase(flight);
  });
}

void Recorder::add(Instruction instruction) {
  if (region_depth_ > 0) instruction.region = regions_;
  if (options_.source_lines) instruction.calls = call_stack();
  program_.instructions.push_back(std::move(instruction));
}

void Recorder::begin_distributed_call(DistributedCall call, const at::Tensor& tensor) {
  record([&] {
    if (region_depth_++ > 0) return;
    const auto value = value_of(plain_part(tensor), call.name);
    ++regions_;
    add({.kind = GraphNode::Kind::distributed,
         .distributed = std::make_shared<const DistributedCall>(std::move(call)),
         .reads = {value}});
  });
}

void Recorder::end_distributed_call() {
  record([&] { --region_depth_; });
}

void Recorder::add_host_action(const std::function<void()>& function) {
  record([&] { add({.kind = GraphNode::Kind::host, .host = function}); });
}

std::vector<at::Tensor> Recorder::run_opaque(OpaqueCall call, const std::vector<at::Tensor>& inputs) {
  Instruction instruction{.kind = GraphNode::Kind::host};
  std::vector<at::Tensor> plain;
  call.inputs = inputs.size();
  for (const auto& each : inputs) plain.push_back(plain_part(each));
  record([&] {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) continue;
      if (dtensor::find_impl(inputs[i]) != nullptr) {
        throw CaptureError(CaptureRefusal::unsupported_call, fmt::format("opaque function \"{}\"", call.name),
                           "an argument is a distributed tensor, which it would not get in a replay",
                           {"Give it to_local()."});
      }
      const auto id = value_of(plain[i], call.name);
      instruction.tensors.push_back({.position = i, .in_list = -1, .value = id});
      instruction.reads.push_back(id);
      instruction.writes.push_back(id);  // for all that is known
    }
  });
  const auto results = call_outside(call, plain);
  record([&] {
    call.returned = classify(results, plain);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (call.returned[i].is_undefined || call.returned[i].input) continue;
      if (!is_plain(results[i]) || dtensor::find_impl(results[i]) != nullptr) {
        throw CaptureError(CaptureRefusal::unsupported_call, fmt::format("opaque function \"{}\"", call.name),
                           "it returned a tensor that is sparse or distributed", {"Return dense tensors."});
      }
      const auto value = add_value(results[i], GraphValue::Origin::result);
      instruction.results.push_back({.position = i, .in_list = -1, .value = value});
    }
    instruction.opaque = std::make_shared<const OpaqueCall>(std::move(call));
    add(std::move(instruction));
  });
  return results;
}

void Recorder::refuse(const CaptureError& why) {
  record([&] { throw CaptureError(why); });
}

LeftTensor Recorder::left_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  LeftTensor left;
  if (const auto* const distributed = dtensor::find_impl(tensor)) {
    left.layout = distributed->layout();
    left.sizes = tensor.sizes().vec();
    left.strides = tensor.strides().vec();
  }
  const auto plain = plain_part(tensor);
  if (!is_plain(plain)) {
    throw CaptureError(CaptureRefusal::unsupported_call, tensor_text(plain), "the step leaves a tensor that is sparse",
                       {});
  }
  const auto known = table_.find(plain);
  left.value = known ? *known : add_constant(plain);
  return left;
}

Program Recorder::finish(std::span<const at::Tensor> results) {
  leaves_.refuse_new_gradients();
  for (const auto& each : results) program_.outputs.push_back(left_tensor(each));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto left = left_tensor(parameters_[i].tensor.grad());
    if (left.value == program_.gradients[i]) continue;
    program_.final_gradients.push_back({.parameter = i, .tensor = std::move(left)});
  }
  add_missing_waits(program_);
  return std::move(program_);
}

namespace {

constexpr OtherThreads engine_threads{.issued =
                                          [](const Issue& issue) {
                                            if (auto* const recorder = Recorder::active()) recorder->observe(issue);
                                          },
                                      .waited =
                                          [](const Work& work) {
                                            if (auto* const recorder = Recorder::active()) recorder->observe_wait(work);
                                          }};

}  // namespace

RecordingScope::RecordingScope(Recorder& recorder)
    : recorder_(ActiveRecorder::kind, std::make_shared<ActiveRecorder>(recorder)),
      key_(wrapper_key),
      observer_([&recorder](const Issue& issue) { recorder.observe(issue); },
                [&recorder](const Work& work) { recorder.observe_wait(work); }) {
  require_fallback();
  observe_other_threads(engine_threads);
}

}  // namespace cohort::recording
