// SPDX-License-Identifier: BSD-3-Clause
#include "torch/c10d/exported_group.h"

#include <ATen/ATen.h>
#include <cohort/error.h>
#include <cohort/prefix_store.h>
#include <cohort/torch/tensor.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

#include "group/process_group_state.h"
#include "torch/c10d/exit.h"
#include "torch/c10d/reduce_op.h"
#include "torch/compat/work_time.h"
#include "torch/written.h"

namespace cohort {

namespace {

/// c10d has lists where a rank could have several devices; Cohort's ranks have one.
template <class T>
T& only(std::vector<T>& list, std::string_view op) {
  if (list.size() != 1)
    throw ValueError(fmt::format("{}: one tensor for each rank is expected, not {}", op, list.size()));
  return list.front();
}

/// c10d's options have no timeout where it is not positive.
Timeout timeout_of(std::chrono::milliseconds timeout) {
  return timeout > std::chrono::milliseconds::zero() ? Timeout(timeout) : Timeout();
}

/// Versions that do not tell whether the caller waits for the operation at once wait for its Work then, and it runs on
/// the caller's thread all the same.
template <class C10dOptions>
ExportedGroup::How how_of(const C10dOptions& options) {
  ExportedGroup::How how{.timeout = timeout_of(options.timeout)};
  if constexpr (requires { options.asyncOp; }) how.async_op = options.asyncOp;
  return how;
}

/// A template, since options have no names in 2.6.
template <class C10dOptions>
std::optional<std::string> name_in(const C10dOptions& options) {
  if constexpr (requires { options.group_name; }) {
    if (!options.group_name.empty()) return options.group_name;
  }
  return std::nullopt;
}

int rank_of(std::int64_t rank) {
  return static_cast<int>(rank);
}

BufferList buffers(const ExportedGroup::Tensors& tensors) {
  std::vector<Buffer> list;
  list.reserve(tensors.size());
  for (const auto& tensor : tensors) list.push_back(buffer_of(tensor));
  return BufferList(list);
}

ConstBufferList const_buffers(const ExportedGroup::Tensors& tensors) {
  std::vector<ConstBuffer> list;
  list.reserve(tensors.size());
  for (const auto& tensor : tensors) list.push_back(const_buffer_of(tensor));
  return ConstBufferList(list);
}

ExportedGroup::Tensors all_of(const std::vector<ExportedGroup::Tensors>& lists) {
  ExportedGroup::Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

ExportedGroup::ExportedGroup(ProcessGroupPtr group, const ToC10dOptions& options)
    : C10dBackend(group->rank(), group->size()),
      group_(options.hold == nullptr ? std::move(group) : options.hold(std::move(group))),
      options_(options) {
  init();
}

ExportedGroup::WorkPtr ExportedGroup::run(const Kind& kind, const Tensors& inputs, Tensors outputs, const How& how,
                                          const Issue& issue) {
  const Caller caller;
  if (scope_) scope_->outputs.insert(scope_->outputs.end(), outputs.begin(), outputs.end());
  auto work = c10::make_intrusive<ExportedWork>(getRank(), kind.type, kind.title, inputs, std::move(outputs));
  if (scope_) {
    issue(scope_->batch, {.async_op = false});  // the batch is asynchronous as a whole
    scope_->works.push_back(work);
  } else {
    work->begin(issue(*group_, how));
  }
  return work;
}

ExportedGroup::WorkPtr ExportedGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  auto& tensor = only(tensors, "broadcast");
  return run({c10d::OpType::BROADCAST, "cohort:broadcast"}, tensors, tensors, how_of(options),
             [&](Operations& target, const How& how) {
               return target.broadcast(
                   buffer_of(tensor),
                   {.root = rank_of(options.rootRank), .async_op = how.async_op, .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (!tensors.empty() && tensors.front().is_sparse()) return sum_sparse(tensors, options);
  return run({c10d::OpType::ALLREDUCE, "cohort:all_reduce"}, tensors, tensors, how_of(options),
             [&](Operations& target, const How& how) {
               const AllReduceOptions ours{
                   .op = reduce_op_from(options.reduceOp), .async_op = how.async_op, .timeout = how.timeout};
               return tensors.size() == 1 ? target.all_reduce(buffer_of(tensors.front()), ours)
                                          : target.all_reduce(buffers(tensors), ours);
             });
}

/// Several collectives in a row, which have to be issued in the same order on all ranks: so it is done when this
/// returns.
ExportedGroup::WorkPtr ExportedGroup::sum_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  auto& tensor = only(tensors, "all_reduce of sparse tensors");
  if (scope_) throw NotSupportedError("all_reduce of sparse tensors in a coalescing scope");
  return run({c10d::OpType::ALLREDUCE, "cohort:sparse_all_reduce"}, tensors, tensors, how_of(options),
             [&](Operations& /*target*/, const How& how) {
               const at::AutoDispatchBelowADInplaceOrView below_autograd;
               tensor.copy_(sparse_all_reduce(*group_, tensor, reduce_op_from(options.reduceOp), how.timeout));
               mark_written(tensor);
               return Work();
             });
}

ExportedGroup::WorkPtr ExportedGroup::allreduce_coalesced(Tensors& tensors,
                                                          const c10d::AllreduceCoalescedOptions& options) {
  return run({c10d::OpType::ALLREDUCE_COALESCED, "cohort:all_reduce"}, tensors, tensors, how_of(options),
             [&](Operations& target, const How& how) {
               return target.all_reduce_coalesced(
                   buffers(tensors),
                   {.op = reduce_op_from(options.reduceOp), .async_op = how.async_op, .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  auto& tensor = only(tensors, "reduce");
  return run({c10d::OpType::REDUCE, "cohort:reduce"}, tensors, tensors, how_of(options),
             [&](Operations& target, const How& how) {
               return target.reduce(buffer_of(tensor), {.root = rank_of(options.rootRank),
                                                        .op = reduce_op_from(options.reduceOp),
                                                        .async_op = how.async_op,
                                                        .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  auto& list = only(outputs, "all_gather");
  auto& input = only(inputs, "all_gather");
  return run({c10d::OpType::ALLGATHER, "cohort:all_gather"}, inputs, list, how_of(options),
             [&](Operations& target, const How& how) {
               return target.all_gather(buffers(list), const_buffer_of(input),
                                        {.async_op = how.async_op, .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  return run({c10d::OpType::_ALLGATHER_BASE, "cohort:_all_gather_base"}, {input}, {output}, how_of(options),
             [&](Operations& target, const How& how) {
               return target.all_gather(buffer_of(output), const_buffer_of(input),
                                        {.async_op = how.async_op, .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  std::vector<BufferList> lists;
  for (const auto& list : outputs) lists.push_back(buffers(list));
  return run({c10d::OpType::ALLGATHER_COALESCED, "cohort:all_gather"}, inputs, all_of(outputs), how_of(options),
             [&](Operations& target, const How& how) {
               return target.all_gather_coalesced(lists, const_buffers(inputs),
                                                  {.async_op = how.async_op, .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::GatherOptions& options) {
  auto& input = only(inputs, "gather");
  const auto list = outputs.empty() ? Tensors() : only(outputs, "gather");
  return run(
      {c10d::OpType::GATHER, "cohort:gather"}, inputs, list, how_of(options), [&](Operations& target, const How& how) {
        return target.gather(buffers(list), const_buffer_of(input),
                             {.root = rank_of(options.rootRank), .async_op = how.async_op, .timeout = how.timeout});
      });
}

ExportedGroup::WorkPtr ExportedGroup::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                              const c10d::ScatterOptions& options) {
  auto& output = only(outputs, "scatter");
  const auto list = inputs.empty() ? Tensors() : only(inputs, "scatter");
  return run({c10d::OpType::SCATTER, "cohort:scatter"}, list, outputs, how_of(options),
             [&](Operations& target, const How& how) {
               return target.scatter(
                   buffer_of(output), const_buffers(list),
                   {.root = rank_of(options.rootRank), .async_op = how.async_op, .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  auto& output = only(outputs, "reduce_scatter");
  auto& list = only(inputs, "reduce_scatter");
  return run({c10d::OpType::REDUCE_SCATTER, "cohort:reduce_scatter"}, list, outputs, how_of(options),
             [&](Operations& target, const How& how) {
               return target.reduce_scatter(
                   buffer_of(output), const_buffers(list),
                   {.op = reduce_op_from(options.reduceOp), .async_op = how.async_op, .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& options) {
  return run({c10d::OpType::_REDUCE_SCATTER_BASE, "cohort:_reduce_scatter_base"}, {input}, {output}, how_of(options),
             [&](Operations& target, const How& how) {
               return target.reduce_scatter(
                   buffer_of(output), const_buffer_of(input),
                   {.op = reduce_op_from(options.reduceOp), .async_op = how.async_op, .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<std::int64_t>& output_splits,
                                                    std::vector<std::int64_t>& input_splits,
                                                    const c10d::AllToAllOptions& options) {
  return run({c10d::OpType::ALLTOALL_BASE, "cohort:all_to_all"}, {input}, {output}, how_of(options),
             [&](Operations& target, const How& how) {
               return target.all_to_all(buffer_of(output), const_buffer_of(input),
                                        {.output_splits = output_splits,
                                         .input_splits = input_splits,
                                         .async_op = how.async_op,
                                         .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                               const c10d::AllToAllOptions& options) {
  return run({c10d::OpType::ALLTOALL, "cohort:all_to_all"}, inputs, outputs, how_of(options),
             [&](Operations& target, const How& how) {
               return target.all_to_all(buffers(outputs), const_buffers(inputs),
                                        {.async_op = how.async_op, .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::barrier(const c10d::BarrierOptions& options) {
  return run({c10d::OpType::BARRIER, "cohort:barrier"}, {}, {}, how_of(options),
             [&](Operations& target, const How& how) {
               return target.barrier({.async_op = how.async_op, .timeout = how.timeout});
             });
}

void ExportedGroup::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  // Here a timeout of 0 does not mean the group's: who is not there yet is missing.
  const auto timeout = options.timeout.count() == 0 ? std::chrono::milliseconds(1) : options.timeout;
  const Caller caller;
  group_->monitored_barrier({.timeout = timeout_of(timeout), .wait_all_ranks = wait_all_ranks});
}

ExportedGroup::WorkPtr ExportedGroup::send(Tensors& tensors, int peer, int tag) {
  auto& tensor = only(tensors, "send");
  return run({c10d::OpType::SEND, "cohort:send"}, tensors, {}, How{}, [&](Operations& target, const How& how) {
    return target.send(const_buffer_of(tensor), peer, {.tag = tag, .async_op = how.async_op});
  });
}

ExportedGroup::WorkPtr ExportedGroup::recv(Tensors& tensors, int peer, int tag) {
  auto& tensor = only(tensors, "recv");
  return run({c10d::OpType::RECV, "cohort:recv"}, tensors, tensors, How{}, [&](Operations& target, const How& how) {
    return target.recv(buffer_of(tensor), peer, {.tag = tag, .async_op = how.async_op});
  });
}

ExportedGroup::WorkPtr ExportedGroup::recvAnysource(Tensors& tensors, int tag) {
  auto& tensor = only(tensors, "recv");
  return run({c10d::OpType::RECVANYSOURCE, "cohort:recvAnySource"}, tensors, tensors, How{},
             [&](Operations& target, const How& how) {
               return target.recv_any_source(buffer_of(tensor), {.tag = tag, .async_op = how.async_op});
             });
}

#if COHORT_TORCH_HAS_C10D_BACKEND

void ExportedGroup::startCoalescing() {
  if (scope_) throw Error("a coalescing scope is already open in this group");
  scope_.emplace(Scope{.batch = group_->batch()});
}

ExportedGroup::WorkPtr ExportedGroup::endCoalescing() {
  if (!scope_) throw Error("no coalescing scope is open in this group");
  auto scope = std::move(*scope_);
  scope_.reset();
  auto whole = c10::make_intrusive<ExportedWork>(getRank(), c10d::OpType::COALESCED, "cohort:coalesced", Tensors(),
                                                 std::move(scope.outputs));
  const auto work = scope.batch.run({.async_op = true});
  for (const auto& part : scope.works) part->begin(work);
  whole->begin(work);
  return whole;
}

ExportedGroup::WorkPtr ExportedGroup::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return sum_sparse(tensors, options);
}

ExportedGroup::WorkPtr ExportedGroup::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::AllgatherOptions& options) {
  return run({c10d::OpType::COALESCED, "cohort:all_gather_into_tensor_coalesced"}, inputs, outputs, how_of(options),
             [&](Operations& target, const How& how) {
               return target.all_gather_coalesced(buffers(outputs), const_buffers(inputs),
                                                  {.async_op = how.async_op, .timeout = how.timeout});
             });
}

ExportedGroup::WorkPtr ExportedGroup::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::ReduceScatterOptions& options) {
  return run({c10d::OpType::COALESCED, "cohort:reduce_scatter_tensor_coalesced"}, inputs, outputs, how_of(options),
             [&](Operations& target, const How& how) {
               return target.reduce_scatter_coalesced(
                   buffers(outputs), const_buffers(inputs),
                   {.op = reduce_op_from(options.reduceOp), .async_op = how.async_op, .timeout = how.timeout});
             });
}

// The numbers of c10d's types and ours are the same.
static_assert(static_cast<int>(c10d::OpType::COALESCED) == static_cast<int>(OpType::coalesced));
static_assert(static_cast<int>(c10d::OpType::_REDUCE_SCATTER_BASE) == static_cast<int>(OpType::reduce_scatter_single));

void ExportedGroup::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  group_->add_post_hook([hook = std::move(hook)](const HookEvent& event) {
    if (has_ended_for_c10d()) return;
    using Time = decltype(c10d::WorkInfo::timeStarted);
    hook(std::make_shared<c10d::WorkInfo>(static_cast<c10d::OpType>(event.op), event.sequence,
                                          work_time<Time>(event.started), work_time<Time>(event.finished),
                                          event.finished - event.started));
  });
}

at::Tensor ExportedGroup::allocateTensor(long elements, at::TensorOptions options) {  // NOLINT(google-runtime-int)
  const auto bytes = static_cast<std::size_t>(elements) * options.dtype().itemsize();
  return bytes < least_bucket_in_group_memory ? at::empty({elements}, options)
                                              : empty_in_group(*group_, {elements}, options);
}

c10::intrusive_ptr<C10dBackend::Options> ExportedGroup::getBackendOptions() {
  return c10::make_intrusive<Options>(getBackendName(), group_->timeout());
}

c10::intrusive_ptr<C10dBackend> ExportedGroup::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<Options>& options) {
  SplitOptions ours;
  if (options) {
    ours.timeout = timeout_of(options->timeout);
    ours.name = name_in(*options);
  }
  // Each rank only names the group that it will be in, and all of them may have one store; nor may waits for the others
  // delay what else uses its connection.
  auto keys = std::make_shared<PrefixStore>(fmt::format("split/{}", fmt::join(ranks, ".")), from_c10d(store)->clone());
  auto group = GroupAccess::make_of(*group_, std::move(keys), ranks, ours);
  return group == nullptr ? nullptr : to_c10d(std::move(group), options_);
}

c10::intrusive_ptr<C10dBackend> ExportedGroup::shrink(const std::vector<std::int64_t>& excluded, int /*flags*/,
                                                      const c10::intrusive_ptr<Options>& options) {
  auto group = group_->shrink(
      {.excluded = {excluded.begin(), excluded.end()}, .timeout = options ? timeout_of(options->timeout) : Timeout()});
  return group == nullptr ? nullptr : to_c10d(std::move(group), options_);
}

#endif

c10::intrusive_ptr<C10dBackend> to_c10d(ProcessGroupPtr group, const ToC10dOptions& options) {
  if (group == nullptr) throw ValueError("to_c10d: no group");
  return c10::make_intrusive<ExportedGroup>(std::move(group), options);
}

ProcessGroupPtr group_behind(const C10dBackend& backend) {
  const auto* const exported = dynamic_cast<const ExportedGroup*>(&backend);
  return exported == nullptr ? nullptr : exported->group();
}

bool wants_group_memory(const C10dBackend& backend) {
  const auto* const exported = dynamic_cast<const ExportedGroup*>(&backend);
  return exported != nullptr && exported->wants_group_memory();
}

}  // namespace cohort
