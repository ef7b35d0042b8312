// SPDX-License-Identifier: BSD-3-Clause
#include "torch/c10d/c10d_backend.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <cohort/error.h>
#include <cohort/issue_observer.h>
#include <cohort/torch/c10d.h>

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/abort_text.h"
#include "core/immortal.h"
#include "core/rank_index.h"
#include "group/transfer_timeout.h"
#include "torch/c10d/c10d_split.h"
#include "torch/c10d/error_text.h"
#include "torch/compat/c10d_calls.h"
#include "torch/compat/features.h"
#include "torch/compat/wrapper_key.h"

namespace cohort {

namespace {

using namespace std::chrono_literals;

/// How long a thread waits in c10d before it looks whether the group was aborted.
constexpr auto longest_wait = 100ms;

/// c10d's operators, those on its tensors, and the collectives of a c10d backend that is one of ours (to_c10d) are no
/// part of a step that the thread may be recording.
struct Unrecorded {
  c10::impl::ExcludeDispatchKeyGuard operators{wrapper_key};
  IssueObserver collectives{nullptr};
};

std::string c10d_name(c10d::ProcessGroup& group, at::Device device) {
#if COHORT_TORCH_HAS_C10D_BACKEND
  return group.getBackend(device.type())->getBackendName();
#else
  static_cast<void>(device);
  return group.getBackendName();
#endif
}

// libtorch 1.13 has no such functions; nor does it have handles of streams, without which no operation comes this far.
template <class Group>
void start_coalescing(Group& group, at::DeviceType type) {
  if constexpr (requires { group.startCoalescing(type); }) group.startCoalescing(type);
}
template <class Group>
void end_coalescing(Group& group, at::DeviceType type) {
  if constexpr (requires { group.endCoalescing(type)->wait(); }) group.endCoalescing(type)->wait();
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

/// Options of c10d with the deadline. Backends that look at it end the operation by themselves.
template <class Options>
Options until(Call& call) {
  Options options;
  options.timeout = c10d_timeout(call.deadline());
  return options;
}

bool is_reduction(OpType type) {
  return type == OpType::all_reduce || type == OpType::reduce || type == OpType::reduce_scatter ||
         type == OpType::reduce_scatter_single;
}

bool is_batch(OpType type) {
  return type == OpType::coalesced || type == OpType::all_reduce_coalesced || type == OpType::all_gather_coalesced;
}

template <class Pieces>
bool are_equal_in_size(const Pieces& pieces) {
  return std::ranges::all_of(pieces, [&](const auto& each) { return each.size() == pieces[0].size(); });
}

template <class Pieces>
bool are_empty(const Pieces& pieces) {
  return std::ranges::all_of(pieces, [](const auto& each) { return each.empty(); });
}

template <class Pieces>
std::vector<std::int64_t> sizes_of(const Pieces& pieces) {
  std::vector<std::int64_t> sizes;
  for (const auto& each : pieces) sizes.push_back(static_cast<std::int64_t>(each.size()));
  return sizes;
}

/// c10d has no negative tags. The library uses some, for itself, and they become the largest ones.
int c10d_tag(int tag) {
  return tag < 0 ? std::numeric_limits<int>::max() + (tag + 1) : tag;
}

/// Process-wide and thread-safe: what c10d may still use. It is never freed, since some of c10d's backends end the
/// process if a Work is destroyed that has not ended.
void leave_behind(std::shared_ptr<const void> used) {
  struct Left {
    std::mutex mutex;
    std::vector<std::shared_ptr<const void>> all;
  };
  static Immortal<Left> left;
  const std::lock_guard lock(left->mutex);
  left->all.push_back(std::move(used));
}

}  // namespace

/// The members of a coalesced operation, which one thread performs one after another.
struct C10dGroupBackend::Batch {
  const Call* call;
  std::shared_ptr<const Operands::Owners> owners;
  bool is_coalesced_by_c10d = false;
  std::vector<std::shared_ptr<Operands>> operands{};

  static thread_local Batch* current;

  explicit Batch(const Operation& op, const Call& its_call)
      : call(&its_call), owners(Operands::owners_of(op)), outer_(std::exchange(current, this)) {}
  ~Batch() { current = outer_; }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  static Batch* of(const Call& call) { return current != nullptr && current->call == &call ? current : nullptr; }

 private:
  Batch* outer_;
};

thread_local C10dGroupBackend::Batch* C10dGroupBackend::Batch::current = nullptr;

C10dGroupBackend::C10dGroupBackend(C10dGroupPtr group, at::Device device, const std::string& id)
    : Backend("c10d/" + c10d_name(*group, device), group->getRank(), group->getSize(), !device.is_cpu()),
      group_(std::move(group)),
      device_(device),
      is_nccl_(name() == "c10d/nccl"),
      can_reduce_scatter_(is_one_of(name(), {"c10d/nccl", "c10d/ucc"})),
      polls_(is_one_of(name(), {"c10d/nccl", "c10d/ucc", "c10d/mpi"})),
      polls_messages_(polls_ || name() == "c10d/cohort"),
      status_(std::make_shared<GroupStatus>(id)),
      streams_(std::make_shared<KnownStreams>(device)),
      enqueued_(streams_, status_) {}

C10dGroupBackend::~C10dGroupBackend() {
  enqueued_.drain(Deadline::never());
  for (const auto& [key, receives] : left_receives_) {
    for (const auto& each : receives) leave_behind(each);
  }
}

Capabilities C10dGroupBackend::capabilities() const {
  using enum OpType;
  auto operations = Capabilities::bits(
      {broadcast, all_reduce, all_reduce_coalesced, reduce, all_gather, all_gather_single, all_gather_coalesced, gather,
       scatter, reduce_scatter, all_to_all_single, all_to_all, send, recv, barrier, reduce_scatter_single, coalesced});
  if (!is_nccl_) operations |= Capabilities::bit(recv_any_source);
  return {.operations = operations,
          .splitting = can_split(*group_, device_),
          .premul_sum = true,
          .stream_ordered = is_stream_ordered()};
}

C10dReduction C10dGroupBackend::reduction(const Operation& op) const {
  return c10d_reduction(op, size(), is_nccl_);
}

void C10dGroupBackend::check_arguments(const Operation& op) const {
  streams_->note_current();
  const auto check_device = [&](const ConstBuffer& buffer) {
    if (buffer.device().index < 0 || buffer.device().index == device_.index()) return;
    throw ValueError(fmt::format("{}: memory of {}; the group is on {}", to_string(op.type), to_string(buffer.device()),
                                 device_.str()),
                     {.op = std::string(to_string(op.type))});
  };
  std::ranges::for_each(op.input_buffers, check_device);
  std::ranges::for_each(op.output_buffers, check_device);
  if (is_reduction(op.type)) reduction(op);
  if (!is_nccl_ || !is_p2p(op.type)) return;
  if (op.type == OpType::recv_any_source) refuse_message(op, "receives from any source");
  if (op.tag != 0) refuse_message(op, "tags other than 0");  // c10d ignores them
}

std::shared_ptr<const Operands::Owners> C10dGroupBackend::owners_of(const Operation& op, const Call& call) const {
  // The buffers of a member may not exist any more, those of the whole operation do.
  if (const auto* const batch = Batch::of(call)) return batch->owners;
  return Operands::owners_of(op);
}

// --- running operations to completion

void C10dGroupBackend::run(const Operation& op, Call& call, const Issue& issue) {
  status_->check(call);
  const Unrecorded unrecorded;
  call.on_stream() == nullptr ? run_on_host(op, call, issue) : run_on_stream(op, call, issue);
}

void C10dGroupBackend::run_on_host(const Operation& op, Call& call, const Issue& issue) {
  struct Used {
    Operands operands;
    std::vector<WorkPtr> works{};
  };
  const auto used = std::make_shared<Used>(Used{Operands(owners_of(op, call), at::kCPU, device_)});
  auto issued = in_c10d(op, call, [&] { return issue(used->operands); });
  used->works = std::move(issued.works);
  try {
    for (const auto& each : used->works) await(*each, op, call);
  } catch (const Error&) {
    if (!std::ranges::all_of(used->works, [](const auto& each) { return each->isCompleted(); })) leave_behind(used);
    throw;
  }
  in_c10d(op, call, [&] {
    if (issued.after) issued.after();
    used->operands.store();
  });
}

void C10dGroupBackend::run_on_stream(const Operation& op, Call& call, const Issue& issue) {
  const c10::StreamGuard on_stream(streams_->named(call.on_stream()->stream));
  auto* const batch = Batch::of(call);
  // The handler of the call owns the memory until the device has finished.
  const auto operands = std::make_shared<Operands>(std::make_shared<Operands::Owners>(), device_, device_);
  const auto issued = in_c10d(op, call, [&] { return issue(*operands); });
  if (batch != nullptr && batch->is_coalesced_by_c10d) return batch->operands.push_back(operands);
  for (const auto& each : issued.works) {
    // What is polled on the host does not block it.
    polls_ ? in_c10d(op, call, [&] { each->wait(); }) : await(*each, op, call);
  }
  in_c10d(op, call, [&] {
    if (issued.after) issued.after();
    operands->store();
  });
  if (batch == nullptr) enqueued_.add(on_stream.current_stream(), call);
}

void C10dGroupBackend::await(c10d::Work& work, const Operation& op, Call& call) {
  if (polls_) poll(work, call);
  for (;;) {
    const bool has_ended = work.isCompleted();
    const auto next_look = earlier(call.deadline(), Deadline::after(longest_wait));
    try {
      if (work.wait(c10d_timeout(next_look))) return;
      throw std::runtime_error("it was aborted");
    } catch (const std::exception&) {
      // An exception before the time was up is the operation's; a later one says that the time is up.
      if (has_ended || !next_look.expired()) fail(describe(op, call), call);
    }
    status_->check(call);
    if (call.deadline().expired() && !work.isCompleted()) give_up(call);
  }
}

void C10dGroupBackend::poll(c10d::Work& work, Call& call) {
  for (int round = 0; !work.isCompleted(); ++round) {
    status_->check(call);
    if (call.deadline().expired()) give_up(call);
    if (round < 1000) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(100us);
    }
  }
}

std::string C10dGroupBackend::describe(const Operation& op, const Call& call) {
  const auto text = fmt::format("{} #{}", to_string(call.op()), call.sequence());
  const bool reduces = op.type == OpType::all_reduce || op.type == OpType::reduce ||
                       op.type == OpType::reduce_scatter || op.type == OpType::reduce_scatter_single;
  return reduces ? fmt::format("{} ({} of {})", text, to_string(op.reduce), to_string(op.dtype)) : text;
}

void C10dGroupBackend::give_up(const Call& call) {
  status_->end(fmt::format("the group ended when {} #{} missed its deadline: c10d cannot take it back",
                           to_string(call.op()), call.sequence()));
  throw OperationTimeoutError(
      fmt::format("{} did not end within {} ms, and c10d cannot take it back: the group is of no more use",
                  to_string(call.op()), call.timeout().count()),
      status_->context(call));
}

void C10dGroupBackend::fail(std::string_view operation, Call& call) {
  status_->check(call);  // this rank may have aborted the group, and c10d failed because of that
  auto context = status_->context(call);
  context.cause = std::current_exception();
  std::string text;
  try {
    throw;
  } catch (const std::exception& error) {
    text = fmt::format("{} failed in {}: {}", operation, name(), text_of(error));
  }
  status_->end(fmt::format("the group ended when {}", text));
  if (call.deadline().expired()) throw OperationTimeoutError(text, std::move(context));
  throw BackendError(text, std::move(context));
}

int C10dGroupBackend::perform(const Operation& op, Call& call) {
  return is_batch(op.type) ? perform_batch(op, call) : Backend::perform(op, call);
}

int C10dGroupBackend::perform_batch(const Operation& op, Call& call) {
  Batch batch(op, call);
  if (call.on_stream() == nullptr) return Backend::perform(op, call);
  const Unrecorded unrecorded;
  const c10::StreamGuard on_stream(streams_->named(call.on_stream()->stream));
  // A message of the batch may wait for another one, so c10d must begin all of them.
  batch.is_coalesced_by_c10d = !op.members.empty() && is_p2p(op.members.front().type);
  if (batch.is_coalesced_by_c10d) in_c10d(op, call, [&] { start_coalescing(*group_, device_.type()); });
  Backend::perform(op, call);
  if (batch.is_coalesced_by_c10d) in_c10d(op, call, [&] { end_coalescing(*group_, device_.type()); });
  in_c10d(op, call, [&] {
    for (const auto& each : batch.operands) each->store();
  });
  enqueued_.add(on_stream.current_stream(), call);
  return -1;
}

void C10dGroupBackend::abort(std::string_view reason) {
  status_->end(abort_text(rank(), reason));
  const auto abort_in_c10d = [](auto& group) {
    if constexpr (requires { group.abort(); }) group.abort();  // not in libtorch 1.13
  };
  try {
    abort_in_c10d(*group_);
  } catch (const c10::Error&) {
    // A backend that cannot: what waits on this rank looks at the status.
  }
}

bool C10dGroupBackend::drain(Deadline deadline) {
  return enqueued_.drain(deadline);
}

BackendPtr C10dGroupBackend::split(const BackendSplit& split, Deadline deadline) {
  return partition({&split, 1}, deadline);
}

BackendPtr C10dGroupBackend::partition(std::span<const BackendSplit> parts, Deadline /*deadline*/) {
  // All parts are known on all ranks, so all refuse alike and nobody waits.
  const auto is_ascending = [](const BackendSplit& part) { return std::ranges::is_sorted(part.ranks); };
  if (!COHORT_TORCH_SPLIT_KEEPS_ORDER && !std::ranges::all_of(parts, is_ascending)) {
    throw NotSupportedError(
        "partition: this version of c10d numbers the ranks of a new group in ascending order; give each part's ranks "
        "so",
        {.op = "partition"});
  }
  const auto has_own_rank = [this](const BackendSplit& part) { return std::ranges::count(part.ranks, rank()) > 0; };
  const auto own = std::ranges::find_if(parts, has_own_rank);
  // c10d wants one call of every rank, with the ranks of its own group; with those of another one on ranks that get
  // none.
  const auto& part = own == parts.end() ? parts.front() : *own;
  C10dGroupPtr child;
  try {
    child = split_in_c10d(*group_, device_, part);
  } catch (const c10::Error& e) {
    throw BackendError(fmt::format("split_group: {}", text_of(e)), {.op = "split_group"});
  }
  if (own == parts.end()) return nullptr;
  return std::make_shared<C10dGroupBackend>(std::move(child), device_, part.id);
}

// --- collectives

void C10dGroupBackend::all_reduce(const Operation& op, Call& call) {
  if (op.in().empty()) return barrier(op, call);
  const auto how = reduction(op);
  run(op, call, [&](Operands& operands) -> Issued {
    std::vector tensors{operands.output(op.out(), how.type)};
    operands.load(tensors[0], op.in());
    how.before(tensors[0]);
    auto options = until<c10d::AllreduceOptions>(call);
    options.reduceOp = how.op;
    return {{group_->allreduce(tensors, options)}, [how, result = tensors[0]] { how.after(result); }};
  });
}

void C10dGroupBackend::reduce(const Operation& op, Call& call) {
  if (op.in().empty()) return barrier(op, call);
  const auto how = reduction(op);
  const bool is_root = rank() == op.root;
  run(op, call, [&](Operands& operands) -> Issued {
    // c10d's backends work in the tensor on all ranks.
    std::vector tensors{is_root ? operands.output(op.out(), how.type) : operands.scratch(op.in().size(), how.type)};
    operands.load(tensors[0], op.in());
    how.before(tensors[0]);
    auto options = until<c10d::ReduceOptions>(call);
    options.reduceOp = how.op;
    options.rootRank = op.root;
    return {{group_->reduce(tensors, options)}, [how, is_root, result = tensors[0]] {
              if (is_root) how.after(result);
            }};
  });
}

void C10dGroupBackend::broadcast(const Operation& op, Call& call) {
  if (op.out().empty()) return barrier(op, call);
  run(op, call, [&](Operands& operands) -> Issued {
    std::vector tensors{rank() == op.root ? operands.input(op.out()) : operands.output(op.out())};
    auto options = until<c10d::BroadcastOptions>(call);
    options.rootRank = op.root;
    return {{group_->broadcast(tensors, options)}};
  });
}

void C10dGroupBackend::all_gather(const Operation& op, Call& call) {
  if (are_empty(op.outs)) return barrier(op, call);
  if (!are_equal_in_size(op.outs)) return all_gather_uneven(op, call);
  run(op, call, [&](Operands& operands) -> Issued {
    const auto options = until<c10d::AllgatherOptions>(call);
    std::vector input{operands.input(op.in())};
    if (is_nccl_) {  // which would copy the outputs of a list
      auto output = operands.packed_output(op.outs);
      return {{compat::all_gather_single(*group_, output, input[0], options)}};
    }
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (const auto& each : op.outs) outputs[0].push_back(operands.output(each));
    return {{group_->allgather(outputs, input, options)}};
  });
}

void C10dGroupBackend::all_gather_uneven(const Operation& op, Call& call) {
  run(op, call, [&](Operands& operands) -> Issued {
    Issued issued;
    for (int root = 0; root < size(); ++root) {
      const auto out = op.outs[index_of(root)];
      if (out.empty()) continue;
      std::vector tensors{operands.output(out)};
      if (root == rank()) operands.load(tensors[0], op.in());
      auto options = until<c10d::BroadcastOptions>(call);
      options.rootRank = root;
      issued.works.push_back(group_->broadcast(tensors, options));
    }
    return issued;
  });
}

void C10dGroupBackend::gather(const Operation& op, Call& call) {
  if (op.in().empty()) return barrier(op, call);
  run(op, call, [&](Operands& operands) -> Issued {
    std::vector input{operands.input(op.in())};
    std::vector<std::vector<at::Tensor>> outputs(rank() == op.root ? 1 : 0);
    for (const auto& each : op.outs) outputs[0].push_back(operands.output(each));
    auto options = until<c10d::GatherOptions>(call);
    options.rootRank = op.root;
    return {{group_->gather(outputs, input, options)}};
  });
}

void C10dGroupBackend::scatter(const Operation& op, Call& call) {
  if (op.out().empty()) return barrier(op, call);
  run(op, call, [&](Operands& operands) -> Issued {
    std::vector output{operands.output(op.out())};
    std::vector<std::vector<at::Tensor>> inputs(rank() == op.root ? 1 : 0);
    for (const auto& each : op.ins) inputs[0].push_back(operands.input(each));
    auto options = until<c10d::ScatterOptions>(call);
    options.rootRank = op.root;
    return {{group_->scatter(output, inputs, options)}};
  });
}

void C10dGroupBackend::reduce_scatter(const Operation& op, Call& call) {
  if (are_empty(op.ins)) return barrier(op, call);
  const auto how = reduction(op);
  if (!can_reduce_scatter_ || !are_equal_in_size(op.ins)) return reduce_and_cut(op, how, call);
  run(op, call, [&](Operands& operands) -> Issued {
    auto input = how.factor == 1 ? operands.packed_input(op.ins, how.type) : operands.packed_copy(op.ins, how.type);
    how.before(input);
    auto output = operands.output(op.out(), how.type);
    auto options = until<c10d::ReduceScatterOptions>(call);
    options.reduceOp = how.op;
    return {{compat::reduce_scatter_single(*group_, output, input, options)}, [how, output] { how.after(output); }};
  });
}

void C10dGroupBackend::reduce_and_cut(const Operation& op, const C10dReduction& how, Call& call) {
  run(op, call, [&](Operands& operands) -> Issued {
    std::vector all{operands.packed_copy(op.ins, how.type)};
    how.before(all[0]);
    std::size_t before = 0;
    for (std::size_t i = 0; i < index_of(rank()); ++i) before += op.ins[i].size();
    const auto element = c10::elementSize(how.type);
    const auto mine = all[0].narrow(0, static_cast<std::int64_t>(before / element),
                                    static_cast<std::int64_t>(op.out().size() / element));
    auto options = until<c10d::AllreduceOptions>(call);
    options.reduceOp = how.op;
    return {{group_->allreduce(all, options)}, [how, mine, output = operands.output(op.out(), how.type)] {
              how.after(mine);
              output.copy_(mine);
            }};
  });
}

void C10dGroupBackend::all_to_all(const Operation& op, Call& call) {
  run(op, call, [&](Operands& operands) -> Issued {
    auto input = operands.packed_input(op.ins);
    auto output = operands.packed_output(op.outs);
    auto input_sizes = sizes_of(op.ins);
    auto output_sizes = sizes_of(op.outs);
    return {{compat::all_to_all_single(*group_, output, input, output_sizes, input_sizes,
                                       until<c10d::AllToAllOptions>(call))}};
  });
}

void C10dGroupBackend::barrier(const Operation& op, Call& call) {
  // c10d's own barrier finds its device in other ways in every version.
  run(op, call, [&](Operands& operands) -> Issued {
    std::vector token{operands.scratch(1).zero_()};
    return {{group_->allreduce(token, until<c10d::AllreduceOptions>(call))}};
  });
}

// --- messages

class C10dGroupBackend::Message final : public Transfer {
 public:
  Message(C10dGroupBackend& backend, PostedPtr posted, const Operation& op, Call& call)
      : backend_(backend),
        posted_(std::move(posted)),
        peer_(op.peer),
        tag_(op.tag),
        to_(op.out()),
        is_receive_(op.type != OpType::send),
        description_(describe(op, call)),
        call_(call.detached()) {}
  ~Message() override {
    if (is_done_) return;
    posted_->leave();
    if (is_receive_) {
      const std::lock_guard lock(backend_.mutex_);
      backend_.left_receives_[{peer_, tag_, to_.size()}].push_back(std::move(posted_));
    } else {
      leave_behind(std::move(posted_));
    }
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  bool advance() override {
    try {
      if (!posted_->is_done(call_.deadline())) return false;
    } catch (const std::exception&) {
      is_done_ = true;
      backend_.fail(description_, call_);
    }
    is_done_ = true;
    if (is_receive_ && !to_.empty()) std::memcpy(to_.data(), posted_->memory().data_ptr(), to_.size());
    return true;
  }
  void check() override { backend_.status_->check(call_); }
  int source() const override { return peer_ == any_source ? posted_->source() : peer_; }
  void rest(Deadline until) { posted_->rest(until); }

 private:
  C10dGroupBackend& backend_;
  PostedPtr posted_;
  const int peer_;
  const int tag_;
  const Bytes to_;
  const bool is_receive_;
  const std::string description_;
  Call call_;
  bool is_done_ = false;
};

void C10dGroupBackend::check_message(const Operation& op, const Call& call) const {
  status_->check(call);
  if (is_stream_ordered()) refuse_message(op, "messages of host memory");
  if (op.peer == rank()) refuse_message(op, "messages of a rank to itself");
}

void C10dGroupBackend::refuse_message(const Operation& op, std::string_view what) const {
  throw NotSupportedError(fmt::format("backend {} does not support {}", name(), what),
                          {.op = std::string(to_string(op.type))});
}

std::unique_ptr<Transfer> C10dGroupBackend::start_send(const Operation& op, Call& call) {
  return post_send(op, call);
}
std::unique_ptr<Transfer> C10dGroupBackend::start_recv(const Operation& op, Call& call) {
  return post_recv(op, call);
}

std::unique_ptr<C10dGroupBackend::Message> C10dGroupBackend::post_send(const Operation& op, Call& call) {
  check_message(op, call);
  const Unrecorded unrecorded;
  Operands operands(owners_of(op, call), device_, device_);
  std::vector tensors{op.in().empty() ? operands.scratch(1).zero_() : operands.input(op.in())};
  auto work = in_c10d(op, call, [&] { return group_->send(tensors, op.peer, c10d_tag(op.tag)); });
  auto posted = std::make_shared<PostedMessage>(std::move(work), tensors[0], polls_messages_, progress_);
  return std::make_unique<Message>(*this, std::move(posted), op, call);
}

std::unique_ptr<C10dGroupBackend::Message> C10dGroupBackend::post_recv(const Operation& op, Call& call) {
  check_message(op, call);
  if (auto left = take_over({op.peer, op.tag, op.out().size()})) {
    return std::make_unique<Message>(*this, std::move(left), op, call);
  }
  const Unrecorded unrecorded;
  // Not the caller's memory, which must not be written any more once the receive has been given up.
  Operands operands(nullptr, device_, device_);
  std::vector tensors{operands.scratch(std::max<std::size_t>(op.out().size(), 1))};
  auto work = in_c10d(op, call, [&] {
    const int tag = c10d_tag(op.tag);
    return op.peer == any_source ? group_->recvAnysource(tensors, tag) : group_->recv(tensors, op.peer, tag);
  });
  auto posted = std::make_shared<PostedMessage>(std::move(work), tensors[0], polls_messages_, progress_);
  return std::make_unique<Message>(*this, std::move(posted), op, call);
}

C10dGroupBackend::PostedPtr C10dGroupBackend::take_over(const MessageKey& key) {
  const std::lock_guard lock(mutex_);
  const auto found = left_receives_.find(key);
  if (found == left_receives_.end()) return nullptr;
  auto first = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) left_receives_.erase(found);
  return first;
}

void C10dGroupBackend::complete(Message& message, int peer, Call& call) {
  while (!message.advance()) {
    message.check();
    if (call.deadline().expired()) throw transfer_timeout(call, peer, status_->context(call));
    message.rest(earlier(call.deadline(), Deadline::after(longest_wait)));
  }
}

void C10dGroupBackend::send(const Operation& op, Call& call) {
  if (call.on_stream() == nullptr) return complete(*post_send(op, call), op.peer, call);
  run(op, call, [&](Operands& operands) -> Issued {
    std::vector tensors{operands.input(op.in())};
    return {{group_->send(tensors, op.peer, c10d_tag(op.tag))}};
  });
}

int C10dGroupBackend::recv(const Operation& op, Call& call) {
  if (call.on_stream() == nullptr) {
    const auto message = post_recv(op, call);
    complete(*message, op.peer, call);
    return message->source();
  }
  run(op, call, [&](Operands& operands) -> Issued {
    std::vector tensors{operands.output(op.out())};
    return {{group_->recv(tensors, op.peer, c10d_tag(op.tag))}};
  });
  return op.peer;
}

void C10dGroupBackend::rest(Deadline until) {
  progress_->rest(polls_messages_ ? earlier(until, Deadline::at(Deadline::Clock::now() + 100us)) : until);
}

}  // namespace cohort
