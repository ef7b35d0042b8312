// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/backend.h"

#include <cohort/error.h>
#include <cohort/log.h>
#include <cohort/prefix_store.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "backends/common/failure.h"
#include "core/rank_index.h"
#include "group/own_part.h"

namespace cohort::nccl {

using namespace std::chrono_literals;

struct NcclBackend::Launch {
  Launch(NcclBackend& owner, Call& its_call)
      : backend(owner),
        call(its_call),
        errors(owner.context_of(its_call)),
        use(owner.communicator_->use(its_call.deadline(), errors)),
        current(*owner.context_),
        comm(use->get()) {}

  NcclBackend& backend;
  Call& call;
  ErrorContext errors;
  std::unique_ptr<Communicator::Use> use;
  cuda::Current current;
  Comm* comm;
  void* stream = nullptr;
  bool in_group = false;
  EnqueuedPtr operation{};

  const Calls& calls() const { return backend.engine_.calls; }
  const cuda::Driver& driver() const { return backend.engine_.driver; }
  /// Checks the result of a call into NCCL. Within an NCCL group, calls are only collected, and the end of the group
  /// reports.
  void did(Result result, std::string_view what) {
    if (in_group && (result == Result::success || result == Result::in_progress)) return;
    backend.communicator_->settle(*use, result, what, call.deadline(), errors);
  }
  void cuda(cuda::Result result, std::string_view what) const { cuda::check(driver(), result, what); }
};

NcclBackend::NcclBackend(const Engine& engine, cuda::ContextPtr context, CommunicatorPtr communicator, StorePtr store,
                         GroupOptions options, Deadline deadline)
    : Backend("nccl", communicator->place().rank, communicator->place().size, true),
      engine_(engine),
      context_(std::move(context)),
      communicator_(std::move(communicator)),
      store_(std::move(store)),
      options_(std::move(options)),
      stream_(context_, options_.is_high_priority_stream),
      events_(std::make_shared<cuda::EventPool>(context_, options_.timing)),
      user_is_here_(context_, false),
      captured_user_is_here_(context_, false),
      barrier_memory_(context_, sizeof(std::int32_t)),
      watchdog_(communicator_, context_, {.id = group(), .store = store_, .rank = rank(), .size = size()}, deadline) {
  const cuda::Current current(*context_);
  cuda::check(engine_.driver,
              engine_.driver.memory_set(cuda::address_of(barrier_memory_.data()), 0, barrier_memory_.bytes()),
              "cuMemsetD8");
}

NcclBackend::~NcclBackend() {
  try {
    watchdog_.drain(Deadline::never());
    communicator_->destroy(Deadline::after(5s));
  } catch (const std::exception& e) {
    log(LogLevel::error, fmt::format("group {}: {}", group(), e.what()));
  }
}

Capabilities NcclBackend::capabilities() const {
  using enum OpType;
  return {.operations =
              Capabilities::bits({broadcast, all_reduce, all_reduce_coalesced, reduce, all_gather, all_gather_single,
                                  all_gather_coalesced, gather, scatter, reduce_scatter, all_to_all_single, all_to_all,
                                  send, recv, barrier, reduce_scatter_single, coalesced}),
          .group_memory = engine_.calls.mem_alloc != nullptr,
          .splitting = true,
          .shrinking = engine_.calls.comm_shrink != nullptr,
          .aborting = true,
          .premul_sum = true,
          .deterministic_order = false,
          .stream_ordered = true};
}

void NcclBackend::check_arguments(const Operation& op) const {
  const auto context = [&] { return context_of(to_string(op.type)); };
  cuda::check_devices(*context_, op, group());
  switch (op.type) {
    case OpType::all_reduce:
    case OpType::reduce:
    case OpType::reduce_scatter:
    case OpType::reduce_scatter_single:
      reducing(op.dtype, op.reduce);
      break;
    case OpType::recv_any_source:
      throw NotSupportedError("NCCL does not receive from any source: name the peer", context());
    case OpType::send:
    case OpType::recv:
      // Messages with different tags would match each other.
      if (op.tag != 0) throw NotSupportedError("NCCL has no tags: only 0 is allowed", context());
      break;
    default:
      break;
  }
}

ErrorContext NcclBackend::context_of(const Call& call) const {
  return {.group = group(), .op = std::string(to_string(call.op())), .sequence = call.sequence()};
}

// --- enqueueing

void NcclBackend::begin(Launch& launch, Call& call) {
  auto& on = *call.on_stream();
  // The legacy null stream is never captured, and querying it would invalidate a capture elsewhere.
  int capturing = 0;
  if (on.stream != nullptr)
    launch.cuda(launch.driver().stream_is_capturing(on.stream, &capturing), "cuStreamIsCapturing");
  launch.stream = on.is_async ? stream_.get() : on.stream;
  launch.operation =
      std::make_shared<Enqueued>(call, launch.stream, capturing != 0, context_, events_, options_.timing);
  if (on.is_async) {
    auto* const event = (capturing != 0 ? captured_user_is_here_ : user_is_here_).get();
    launch.cuda(launch.driver().event_record(event, on.stream), "cuEventRecord");
    launch.cuda(launch.driver().stream_wait_event(launch.stream, event, 0), "cuStreamWaitEvent");
  }
  launch.operation->record_start();
}

void NcclBackend::finish(Launch& launch, Call& call) {
  launch.operation->record_end();
  if (launch.operation->is_captured()) {
    launch.operation->end(nullptr);
  } else {
    watchdog_.watch(launch.operation);
  }
  call.on_stream()->completion = std::move(launch.operation);
}

void NcclBackend::enqueue(const Operation& op, Call& call, const Body& body) {
  if (call.on_stream() == nullptr) {
    throw NotSupportedError("NCCL works on device memory", context_of(call));
  }
  const bool is_message = op.type == OpType::send || op.type == OpType::recv;
  const auto run = [&](Launch& launch) {
    auto& operation = *launch.operation;
    if (is_message) operation.add_peer(op.peer);
    if (!is_message && !operation.is_captured()) {
      operation.set_number(watchdog_.coordinator().enter(OpSignature::of(op), call.sequence()));
    }
    body(launch);
  };
  if (batch_call_.load(std::memory_order_relaxed) == &call) return run(*batch_);
  watchdog_.coordinator().check(call);
  Launch launch(*this, call);
  try {
    begin(launch, call);
    run(launch);
    finish(launch, call);
  } catch (...) {
    launch.use.reset();  // the abort needs the communicator's turn
    fail_with(std::current_exception(), call);
  }
}

void NcclBackend::begin_batch(Call& call) {
  if (call.on_stream() == nullptr) throw NotSupportedError("NCCL works on device memory", context_of(call));
  watchdog_.coordinator().check(call);
  auto launch = std::make_unique<Launch>(*this, call);
  try {
    begin(*launch, call);
    launch->did(engine_.calls.group_start(), "ncclGroupStart");
    launch->in_group = true;
  } catch (...) {
    launch->use.reset();
    fail_with(std::current_exception(), call);
  }
  batch_ = std::move(launch);
  batch_call_ = &call;
}

void NcclBackend::end_batch(Call& call) {
  batch_call_ = nullptr;
  const auto launch = std::move(batch_);
  try {
    launch->in_group = false;
    launch->did(engine_.calls.group_end(), "ncclGroupEnd");
    finish(*launch, call);
  } catch (...) {
    launch->use.reset();
    fail_with(std::current_exception(), call);
  }
}

void NcclBackend::cancel_batch(Call& call) noexcept {
  batch_call_ = nullptr;
  const auto launch = std::move(batch_);
  // The NCCL group must be closed, and it now contains less than the other ranks wait for.
  engine_.calls.group_end();
  launch->use.reset();
  try {
    fail_with(std::current_exception(), call);
  } catch (const Error&) {  // the caller has the error that led here
  }
}

void NcclBackend::fail_with(const std::exception_ptr& error, const Call& call) {
  auto& coordinator = watchdog_.coordinator();
  try {
    coordinator.check(call);
    coordinator.fail(failure_of(error), call);
  } catch (const Error&) {
    watchdog_.end();
    throw;
  }
}

void NcclBackend::together(Launch& launch, const std::function<void()>& calls) {
  if (launch.in_group) return calls();
  launch.did(launch.calls().group_start(), "ncclGroupStart");
  launch.in_group = true;
  try {
    calls();
  } catch (...) {
    launch.in_group = false;
    launch.calls().group_end();
    throw;
  }
  launch.in_group = false;
  launch.did(launch.calls().group_end(), "ncclGroupEnd");
}

void NcclBackend::with_op(Launch& launch, const Operation& op, const std::function<void(const Reducing&, RedOp)>& fn) {
  const auto how = reducing(op.dtype, op.reduce);
  if (op.reduce.kind() != ReduceOp::Kind::premul_sum) return fn(how, how.op);
  auto factor = scalar(how.type, op.reduce.factor());
  RedOp made{};
  launch.did(launch.calls().create_premul_sum(&made, factor.data(), how.type, scalar_host_immediate, launch.comm),
             "ncclRedOpCreatePreMulSum");
  // NCCL copies what it needs of the operator into each call that names it.
  try {
    fn(how, made);
  } catch (...) {
    launch.calls().destroy_op(made, launch.comm);
    throw;
  }
  launch.did(launch.calls().destroy_op(made, launch.comm), "ncclRedOpDestroy");
}

// --- collectives

namespace {

/// Whether the pieces lie one after another and are all as large as the first.
template <class Pieces>
bool are_one(const Pieces& pieces) {
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    if (pieces[i].size() != pieces[0].size() || pieces[i].data() != pieces[i - 1].data() + pieces[i - 1].size())
      return false;
  }
  return true;
}

}  // namespace

void NcclBackend::all_reduce(const Operation& op, Call& call) {
  enqueue(op, call, [&](Launch& launch) {
    with_op(launch, op, [&](const Reducing& how, RedOp operation) {
      launch.did(launch.calls().all_reduce(op.in().data(), op.out().data(), op.count_of(op.in()) * how.per_element,
                                           how.type, operation, launch.comm, launch.stream),
                 "ncclAllReduce");
    });
  });
}

void NcclBackend::reduce(const Operation& op, Call& call) {
  enqueue(op, call, [&](Launch& launch) {
    with_op(launch, op, [&](const Reducing& how, RedOp operation) {
      launch.did(launch.calls().reduce(op.in().data(), op.out().data(), op.count_of(op.in()) * how.per_element,
                                       how.type, operation, op.root, launch.comm, launch.stream),
                 "ncclReduce");
    });
  });
}

void NcclBackend::broadcast(const Operation& op, Call& call) {
  if (call.on_stream() == nullptr) return perform_on_copies(op, call);
  const auto data = op.out();
  enqueue(op, call, [&](Launch& launch) {
    launch.did(launch.calls().broadcast(data.data(), data.data(), data.size(), DataType::uint8, op.root, launch.comm,
                                        launch.stream),
               "ncclBroadcast");
  });
}

void NcclBackend::all_gather(const Operation& op, Call& call) {
  if (call.on_stream() == nullptr) return perform_on_copies(op, call);
  const auto in = op.in();
  enqueue(op, call, [&](Launch& launch) {
    if (are_one(op.outs)) {
      return launch.did(
          launch.calls().all_gather(in.data(), op.out().data(), in.size(), DataType::uint8, launch.comm, launch.stream),
          "ncclAllGather");
    }
    together(launch, [&] {
      for (int root = 0; root < size(); ++root) {
        const auto out = op.outs[index_of(root)];
        if (out.empty()) continue;
        launch.did(launch.calls().broadcast(root == rank() ? in.data() : out.data(), out.data(), out.size(),
                                            DataType::uint8, root, launch.comm, launch.stream),
                   "ncclBroadcast");
      }
    });
  });
}

void NcclBackend::exchange(Launch& launch, std::span<const ConstBytes> to, std::span<const Bytes> from) {
  together(launch, [&] {
    for (std::size_t peer = 0; peer < to.size(); ++peer) {
      if (to[peer].empty()) continue;
      launch.did(launch.calls().send(to[peer].data(), to[peer].size(), DataType::uint8, static_cast<int>(peer),
                                     launch.comm, launch.stream),
                 "ncclSend");
    }
    for (std::size_t peer = 0; peer < from.size(); ++peer) {
      if (from[peer].empty()) continue;
      launch.did(launch.calls().recv(from[peer].data(), from[peer].size(), DataType::uint8, static_cast<int>(peer),
                                     launch.comm, launch.stream),
                 "ncclRecv");
    }
  });
}

void NcclBackend::gather(const Operation& op, Call& call) {
  if (call.on_stream() == nullptr) return perform_on_copies(op, call);
  enqueue(op, call, [&](Launch& launch) {
    std::vector<ConstBytes> to(index_of(size()));
    to[index_of(op.root)] = op.in();
    exchange(launch, to, op.outs);
  });
}

void NcclBackend::scatter(const Operation& op, Call& call) {
  enqueue(op, call, [&](Launch& launch) {
    std::vector<Bytes> from(index_of(size()));
    from[index_of(op.root)] = op.out();
    exchange(launch, op.ins, from);
  });
}

void NcclBackend::all_to_all(const Operation& op, Call& call) {
  if (call.on_stream() == nullptr) return perform_on_copies(op, call);
  enqueue(op, call, [&](Launch& launch) { exchange(launch, op.ins, op.outs); });
}

void NcclBackend::reduce_scatter(const Operation& op, Call& call) {
  enqueue(op, call, [&](Launch& launch) {
    with_op(launch, op, [&](const Reducing& how, RedOp operation) {
      if (are_one(op.ins)) {
        return launch.did(
            launch.calls().reduce_scatter(op.in().data(), op.out().data(), op.count_of(op.out()) * how.per_element,
                                          how.type, operation, launch.comm, launch.stream),
            "ncclReduceScatter");
      }
      together(launch, [&] {
        for (int root = 0; root < size(); ++root) {
          const auto in = op.ins[index_of(root)];
          if (in.empty()) continue;
          launch.did(launch.calls().reduce(in.data(), root == rank() ? op.out().data() : nullptr,
                                           op.count_of(in) * how.per_element, how.type, operation, root, launch.comm,
                                           launch.stream),
                     "ncclReduce");
        }
      });
    });
  });
}

void NcclBackend::barrier(const Operation& op, Call& call) {
  enqueue(op, call, [&](Launch& launch) {
    auto* const data = barrier_memory_.data();
    launch.did(launch.calls().all_reduce(data, data, 1, DataType::int32, RedOp::sum, launch.comm, launch.stream),
               "ncclAllReduce");
  });
}

void NcclBackend::send(const Operation& op, Call& call) {
  const auto data = op.in();
  enqueue(op, call, [&](Launch& launch) {
    launch.did(launch.calls().send(data.data(), data.size(), DataType::uint8, op.peer, launch.comm, launch.stream),
               "ncclSend");
  });
}

int NcclBackend::recv(const Operation& op, Call& call) {
  const auto data = op.out();
  enqueue(op, call, [&](Launch& launch) {
    launch.did(launch.calls().recv(data.data(), data.size(), DataType::uint8, op.peer, launch.comm, launch.stream),
               "ncclRecv");
  });
  return op.peer;
}

// --- host memory

namespace {

class Outcome final : public CompletionHandler {
 public:
  void ended(std::exception_ptr error) noexcept override {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    has_ended_ = true;
    changed_.notify_all();
  }
  /// Waits; the operation's own deadline bounds the wait.
  void value() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return has_ended_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
  bool has_ended_ = false;
};

}  // namespace

void NcclBackend::perform_on_copies(const Operation& op, Call& call) {
  std::size_t bytes = 0;
  for (const auto& in : op.ins) bytes += in.size();
  for (const auto& out : op.outs) bytes += out.size();
  const cuda::Memory memory(context_, bytes);
  const cuda::Current current(*context_);
  const auto& driver = engine_.driver;
  // All copies use the group's own stream: the null stream would wait for unrelated work on the device.
  const auto copy = [&](std::byte* to, ConstBytes from) {
    if (from.empty()) return;
    cuda::check(driver,
                driver.copy_async(cuda::address_of(to), cuda::address_of(from.data()), from.size(), stream_.get()),
                "cuMemcpyAsync");
  };
  auto* next = memory.data();
  Operation there{.type = op.type, .dtype = op.dtype, .root = op.root};
  for (const auto& in : op.ins) {
    copy(next, in);
    there.ins.push_back({next, in.size()});
    next += in.size();
  }
  for (const auto& out : op.outs) {
    // The data of a broadcast is read on its root.
    if (op.type == OpType::broadcast && rank() == op.root) copy(next, out);
    there.outs.push_back({next, out.size()});
    next += out.size();
  }
  const auto outcome = std::make_shared<Outcome>();
  OnStream on{.stream = stream_.get(), .is_async = false, .handler = outcome};
  auto inner = call.detached();
  inner.set_on_stream(on);
  perform(there, inner);
  on.completion->wait(Deadline::never());
  outcome->value();
  // Copies to pageable memory: the driver returns when they are complete.
  for (std::size_t i = 0; i < op.outs.size(); ++i) copy(op.outs[i].data(), there.outs[i]);
}

GroupMemory NcclBackend::allocate(std::size_t bytes) {
  if (engine_.calls.mem_alloc == nullptr) refuse("memory of the group (NCCL 2.19 has it)");
  const cuda::Current current(*context_);
  void* data = nullptr;
  const auto result = engine_.calls.mem_alloc(&data, std::max<std::size_t>(bytes, 1));
  if (result != Result::success) {
    throw BackendError(fmt::format("ncclMemAlloc of {} bytes: {}", bytes, describe(engine_.calls, result, nullptr)),
                       context_of("allocate"));
  }
  std::shared_ptr<void> owner(data, [&calls = engine_.calls, context = context_](void* memory) {
    try {
      const cuda::Current while_freeing(*context);
      calls.mem_free(memory);
    } catch (const BackendError& e) {
      log(LogLevel::error, e.what());
    }
  });
  cuda::check(engine_.driver, engine_.driver.memory_set(cuda::address_of(data), 0, bytes), "cuMemsetD8");
  return {std::move(owner), data, bytes};
}

// --- subgroups and shutdown

BackendPtr NcclBackend::split_by_color(int color, const Communicator::Place& place, const StorePtr& store,
                                       GroupOptions options, Deadline deadline) {
  auto made = communicator_->split(color, place, options.config_for(engine_.calls.version), deadline);
  if (made == nullptr) return nullptr;
  return std::make_shared<NcclBackend>(engine_, context_, std::move(made), store, std::move(options), deadline);
}

BackendPtr NcclBackend::split(const BackendSplit& split, Deadline deadline) {
  return partition(std::span(&split, 1), deadline);
}

BackendPtr NcclBackend::partition(std::span<const BackendSplit> parts, Deadline deadline) {
  const auto own = find_own_part(parts, rank());
  if (!own) return split_by_color(split_no_color, {}, nullptr, options_, deadline);
  const auto& part = parts[own->index];
  return split_by_color(static_cast<int>(own->index),
                        {.rank = own->rank, .size = static_cast<int>(part.ranks.size()), .group = part.id},
                        keys_for(part.id), options_, deadline);
}

StorePtr NcclBackend::keys_for(const std::string& id) const {
  return std::make_shared<PrefixStore>(fmt::format("made/{}", id), store_->clone());
}

void NcclBackend::prepare_shrink() {
  // The communicator is needed once more: ncclCommShrink itself ends what is on the device.
  if (engine_.calls.comm_shrink != nullptr) watchdog_.keep_communicator();
  watchdog_.coordinator().adopt({.kind = ErrorKind::aborted, .text = "the group was shrunk"});
  watchdog_.end();
}

BackendShrunk NcclBackend::shrink(std::span<const int> excluded, Deadline deadline) {
  if (engine_.calls.comm_shrink == nullptr) refuse("shrink (NCCL 2.27 has it)");
  std::vector<int> ranks;
  for (int each = 0; each < size(); ++each) {
    if (std::find(excluded.begin(), excluded.end(), each) == excluded.end()) ranks.push_back(each);
  }
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  if (place == ranks.end()) {
    communicator_->abort();
    return {};
  }
  const auto id = fmt::format("{}/shrunk[{}]", group(), fmt::join(ranks, ","));
  auto made = communicator_->shrink(
      excluded, {.rank = static_cast<int>(place - ranks.begin()), .size = static_cast<int>(ranks.size()), .group = id},
      options_.config_for(engine_.calls.version), deadline);
  return {
      .ranks = std::move(ranks),
      .backend = std::make_shared<NcclBackend>(engine_, context_, std::move(made), keys_for(id), options_, deadline)};
}

void NcclBackend::abort(std::string_view reason) {
  watchdog_.coordinator().abort(reason);
  watchdog_.end();
}

bool NcclBackend::drain(Deadline deadline) {
  return watchdog_.drain(deadline);
}

void NcclBackend::shutdown(Deadline deadline) {
  if (!watchdog_.drain(deadline)) return;
  communicator_->destroy(earlier(deadline, Deadline::after(options_.timeout.value_or(30s))));
  watchdog_.coordinator().leave();
}

}  // namespace cohort::nccl
