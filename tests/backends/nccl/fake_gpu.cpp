// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/fake_gpu.h"

#include <cohort/reduce_op.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "reduce/kernels.h"

namespace cohort::test {

namespace {

using nccl::Comm;
using nccl::DataType;
using nccl::RedOp;
using nccl::Result;

std::atomic<FakeGpu*> the_gpu{nullptr};
thread_local void* current_context = nullptr;
thread_local int group_depth = 0;
thread_local int capture_mode = 0;  // global mode, the default of a new thread
thread_local std::vector<std::pair<FakeCall, void*>> group_calls;
int contexts[2];

DType dtype_of_type(DataType type) {
  switch (type) {
    case DataType::int8:
      return DType::i8;
    case DataType::uint8:
      return DType::u8;
    case DataType::int32:
      return DType::i32;
    case DataType::int64:
      return DType::i64;
    case DataType::uint32:
      return DType::u32;
    case DataType::uint64:
      return DType::u64;
    case DataType::float16:
      return DType::f16;
    case DataType::float32:
      return DType::f32;
    case DataType::float64:
      return DType::f64;
    case DataType::bfloat16:
      return DType::bf16;
  }
  std::abort();
}

ReduceOp::Kind kind_of(RedOp op) {
  switch (op) {
    case RedOp::sum:
      return ReduceOp::Kind::sum;
    case RedOp::product:
      return ReduceOp::Kind::product;
    case RedOp::max:
      return ReduceOp::Kind::max;
    case RedOp::min:
      return ReduceOp::Kind::min;
    case RedOp::avg:
      return ReduceOp::Kind::avg;
  }
  return ReduceOp::Kind::premul_sum;
}

FakeGpu& gpu() {
  return FakeGpu::instance();
}
FakeEvent& event_of(void* handle) {
  return *static_cast<FakeEvent*>(handle);
}

cuda::Driver fake_driver() {
  cuda::Driver d;
  d.init = [](unsigned) { return 0; };
  d.get_error_name = [](int, const char** name) {
    *name = "FAKE_ERROR";
    return 0;
  };
  d.get_error_string = [](int, const char** text) {
    *text = "told to fail";
    return 0;
  };
  d.device_count = [](int* count) {
    *count = 2;
    return 0;
  };
  d.primary_context_retain = [](void** context, int device) {
    *context = &contexts[device];
    return 0;
  };
  d.primary_context_release = [](int) { return 0; };
  d.context_get_current = [](void** context) {
    *context = current_context;
    return 0;
  };
  d.context_set_current = [](void* context) {
    current_context = context;
    return 0;
  };
  d.context_get_device = [](int* device) {
    *device = static_cast<int>(static_cast<int*>(current_context) - contexts);
    return 0;
  };
  d.stream_priority_range = [](int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
  };
  d.stream_create = [](void** stream, unsigned, int priority) {
    *stream = gpu().make_stream("own" + std::to_string(priority));
    return 0;
  };
  d.stream_destroy = [](void*) { return 0; };
  d.stream_wait_event = [](void* stream, void* event, unsigned) {
    const auto lock = gpu().lock();
    gpu().note("stream_wait_event " + gpu().stream(stream).name);
    auto* const awaited = &event_of(event);
    gpu().enqueue(stream, [awaited, until = awaited->recorded] { return awaited->done >= until; });
    return 0;
  };
  d.stream_is_capturing = [](void* stream, int* status) {
    const auto lock = gpu().lock();
    *status = gpu().stream(stream).is_capturing ? 1 : 0;
    return 0;
  };
  d.exchange_capture_mode = [](int* mode) {
    std::swap(*mode, capture_mode);
    return 0;
  };
  d.event_create = [](void** event, unsigned) {
    const auto lock = gpu().lock();
    gpu().events.push_back(std::make_unique<FakeEvent>());
    *event = gpu().events.back().get();
    return 0;
  };
  d.event_destroy = [](void* event) {
    const auto lock = gpu().lock();
    event_of(event).is_alive = false;
    return 0;
  };
  d.event_record = [](void* event, void* stream) {
    const auto lock = gpu().lock();
    gpu().note("event_record " + gpu().stream(stream).name);
    auto* const recorded = &event_of(event);
    recorded->is_captured = gpu().stream(stream).is_capturing;
    gpu().enqueue(stream, [recorded, number = ++recorded->recorded] {
      recorded->done = std::max(recorded->done, number);
      return true;
    });
    return 0;
  };
  d.event_query = [](void* event) {
    const auto lock = gpu().lock();
    auto& asked = event_of(event);
    if (asked.is_captured || capture_mode != 2) gpu().asked_about_capture_ = true;
    return asked.done >= asked.recorded ? cuda::success : cuda::not_ready;
  };
  d.event_elapsed = [](float* milliseconds, void*, void*) {
    *milliseconds = 1.5F;
    return 0;
  };
  d.memory_allocate = [](cuda::Address* address, std::size_t bytes) {
    *address = cuda::address_of(std::calloc(1, bytes));
    return 0;
  };
  d.memory_free = [](cuda::Address address) {
    std::free(reinterpret_cast<void*>(address));
    return 0;
  };
  d.host_allocate = [](void** data, std::size_t bytes) {
    *data = std::calloc(1, bytes);
    return 0;
  };
  d.host_free = [](void* data) {
    std::free(data);
    return 0;
  };
  d.memory_set = [](cuda::Address to, unsigned char value, std::size_t bytes) {
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    return 0;
  };
  d.copy_async = [](cuda::Address to, cuda::Address from, std::size_t bytes, void* stream) {
    const auto lock = gpu().lock();
    gpu().enqueue(stream, [=] {
      std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
      return true;
    });
    return 0;
  };
  return d;
}

template <FakeCall::Kind kind>
Result rooted(const void* in, void* out, std::size_t count, DataType type, int root, Comm* comm, void* stream) {
  return gpu().issue({.kind = kind, .in = in, .out = out, .count = count, .type = type, .peer = root, .comm = comm},
                     stream);
}

nccl::Calls fake_calls() {
  using Kind = FakeCall::Kind;
  nccl::Calls c;
  c.get_version = [](int* version) {
    *version = gpu().version;
    return Result::success;
  };
  c.get_error_string = [](Result result) {
    return result == Result::remote_error ? "remote process exited or there was a network error" : "told to fail";
  };
  c.get_last_error = [](Comm*) { return "the last words"; };
  c.get_unique_id = [](nccl::UniqueId* id) {
    const auto lock = gpu().lock();
    const auto text = std::to_string(++gpu().next_id);
    std::copy(text.begin(), text.end(), id->bytes.begin());
    return Result::success;
  };
  c.comm_init = [](Comm** comm, int size, nccl::UniqueId id, int rank, nccl::Config* config) {
    return gpu().init(comm, size, id, rank, *config);
  };
  c.comm_finalize = [](Comm*) {
    const auto lock = gpu().lock();
    gpu().note("finalize");
    return Result::success;
  };
  c.comm_destroy = [](Comm*) {
    const auto lock = gpu().lock();
    gpu().note("destroy");
    return Result::success;
  };
  c.comm_abort = [](Comm* comm) {
    const auto lock = gpu().lock();
    gpu().note("abort");
    comm->is_aborted = true;
    gpu().pump();
    return Result::success;
  };
  c.comm_split = [](Comm* comm, int color, int key, Comm** made, nccl::Config* config) {
    const auto lock = gpu().lock();
    gpu().note("split " + std::to_string(color));
    const auto number = comm->operations++;
    if (color < 0) return Result::success;
    auto& child = comm->world->children[number * 100 + static_cast<std::uint64_t>(color)];
    if (child == nullptr) child = std::make_shared<FakeWorld>();
    // The size is known once all have called: in these tests members call in any order, and are ranked by key.
    child->arrived++;
    child->size = std::max(child->size, child->arrived);
    gpu().promise_child(comm, made, child, key, *config);
    return Result::success;
  };
  c.comm_shrink = [](Comm* comm, int* excluded, int count, Comm** made, nccl::Config* config, int flags) {
    const auto lock = gpu().lock();
    gpu().note("shrink " + std::to_string(count) + " flags " + std::to_string(flags));
    auto& child = comm->world->children[1'000'000];
    if (child == nullptr) child = std::make_shared<FakeWorld>();
    child->size = comm->world->size - count;
    child->arrived++;
    int rank = comm->rank;
    for (int i = 0; i < count; ++i) rank -= excluded[i] < comm->rank ? 1 : 0;
    comm->is_aborted = true;
    gpu().promise_child(comm, made, child, rank, *config);
    gpu().pump();
    return Result::success;
  };
  c.comm_get_async_error = [](Comm* comm, Result* error) {
    const auto lock = gpu().lock();
    *error = gpu().state_of(*comm);
    return Result::success;
  };
  c.group_start = [] {
    const auto lock = gpu().lock();
    gpu().note("group_start");
    ++group_depth;
    return Result::success;
  };
  c.group_end = [] {
    const auto lock = gpu().lock();
    gpu().note("group_end");
    --group_depth;
    return gpu().end_group();
  };
  c.all_reduce = [](const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm, void* stream) {
    return gpu().issue(
        {.kind = Kind::all_reduce, .in = in, .out = out, .count = count, .type = type, .op = op, .comm = comm}, stream);
  };
  c.reduce = [](const void* in, void* out, std::size_t count, DataType type, RedOp op, int root, Comm* comm,
                void* stream) {
    return gpu().issue({.kind = Kind::reduce,
                        .in = in,
                        .out = out,
                        .count = count,
                        .type = type,
                        .op = op,
                        .peer = root,
                        .comm = comm},
                       stream);
  };
  c.broadcast = rooted<Kind::broadcast>;
  c.all_gather = [](const void* in, void* out, std::size_t count, DataType type, Comm* comm, void* stream) {
    return rooted<Kind::all_gather>(in, out, count, type, 0, comm, stream);
  };
  c.reduce_scatter = [](const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                        void* stream) {
    return gpu().issue(
        {.kind = Kind::reduce_scatter, .in = in, .out = out, .count = count, .type = type, .op = op, .comm = comm},
        stream);
  };
  c.send = [](const void* data, std::size_t count, DataType type, int peer, Comm* comm, void* stream) {
    return rooted<Kind::send>(data, nullptr, count, type, peer, comm, stream);
  };
  c.recv = [](void* data, std::size_t count, DataType type, int peer, Comm* comm, void* stream) {
    return rooted<Kind::recv>(nullptr, data, count, type, peer, comm, stream);
  };
  c.create_premul_sum = [](RedOp* op, void* scalar, DataType type, int, Comm*) {
    const auto lock = gpu().lock();
    double factor = 0;
    if (type == DataType::float64) {
      std::memcpy(&factor, scalar, sizeof(factor));
    } else {
      float narrow = 0;
      std::memcpy(&narrow, scalar, sizeof(narrow));
      factor = static_cast<double>(narrow);
    }
    *op = static_cast<RedOp>(gpu().next_op++);
    gpu().factors[static_cast<int>(*op)] = factor;
    return Result::success;
  };
  c.destroy_op = [](RedOp op, Comm*) {
    const auto lock = gpu().lock();
    gpu().note("destroy_op");
    gpu().factors.erase(static_cast<int>(op));
    return Result::success;
  };
  c.mem_alloc = [](void** data, std::size_t bytes) {
    *data = std::calloc(1, bytes);
    return Result::success;
  };
  c.mem_free = [](void* data) {
    const auto lock = gpu().lock();
    gpu().note("mem_free");
    std::free(data);
    return Result::success;
  };
  return c;
}

const char* name_of(FakeCall::Kind kind) {
  switch (kind) {
    case FakeCall::Kind::all_reduce:
      return "all_reduce";
    case FakeCall::Kind::reduce:
      return "reduce";
    case FakeCall::Kind::broadcast:
      return "broadcast";
    case FakeCall::Kind::all_gather:
      return "all_gather";
    case FakeCall::Kind::reduce_scatter:
      return "reduce_scatter";
    case FakeCall::Kind::send:
      return "send";
    case FakeCall::Kind::recv:
      return "recv";
  }
  return "";
}

}  // namespace

FakeGpu::FakeGpu() {
  engine_.driver = fake_driver();
  engine_.calls = fake_calls();
  engine_.calls.version = version;
  the_gpu = this;
}

FakeGpu::~FakeGpu() {
  the_gpu = nullptr;
}

FakeGpu& FakeGpu::instance() {
  return *the_gpu;
}

FakeStream& FakeGpu::stream(void* handle) {
  if (handle != nullptr) return *static_cast<FakeStream*>(handle);
  auto& own = null_streams_[std::this_thread::get_id()];
  own.name = "null";
  return own;
}

void* FakeGpu::make_stream(const std::string& name) {
  const auto held = lock();
  streams.push_back(std::make_unique<FakeStream>());
  streams.back()->name = name;
  return streams.back().get();
}

void FakeGpu::launch(void* handle, std::function<void()> fn) {
  const auto held = lock();
  enqueue(handle, [fn = std::move(fn)] {
    fn();
    return true;
  });
}

void FakeGpu::set_capturing(void* handle, bool is_capturing) {
  const auto held = lock();
  stream(handle).is_capturing = is_capturing;
}

void FakeGpu::hold_kernels(bool held_back) {
  const auto held = lock();
  kernels_held = held_back;
  pump();
}
void FakeGpu::hold_connections(bool held_back) {
  const auto held = lock();
  connections_held = held_back;
}
void FakeGpu::hold_launches(bool held_back) {
  const auto held = lock();
  launches_held = held_back;
}
void FakeGpu::report(Result error) {
  const auto held = lock();
  for (auto& comm : comms) comm->async_error = error;
}

std::vector<std::string> FakeGpu::log() const {
  const std::lock_guard held(mutex_);
  return log_;
}
void FakeGpu::clear_log() {
  const std::lock_guard held(mutex_);
  log_.clear();
}
int FakeGpu::count(const std::string& call) const {
  const std::lock_guard held(mutex_);
  return static_cast<int>(std::count(log_.begin(), log_.end(), call));
}
int FakeGpu::alive_events() const {
  const std::lock_guard held(mutex_);
  return static_cast<int>(std::count_if(events.begin(), events.end(), [](const auto& each) { return each->is_alive; }));
}
nccl::Config FakeGpu::last_config() const {
  const std::lock_guard held(mutex_);
  return last_config_;
}

void FakeGpu::enqueue(void* handle, FakeItem item) {
  auto& on = stream(handle);
  on.items.push_back(std::move(item));
  pump();
}

void FakeGpu::pump() {
  const auto advance_one = [](FakeStream& each) {
    bool moved = false;
    while (!each.items.empty() && each.items.front()()) {
      each.items.pop_front();
      moved = true;
    }
    return moved;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& [thread, each] : null_streams_) moved = advance_one(each) || moved;
    for (auto& each : streams) moved = advance_one(*each) || moved;
  }
}

nccl::Comm* FakeGpu::make_comm(std::shared_ptr<FakeWorld> world, int rank, const nccl::Config& config) {
  comms.push_back(std::make_unique<Comm>());
  auto& comm = *comms.back();
  comm.world = std::move(world);
  comm.rank = rank;
  last_config_ = config;
  return &comm;
}

void FakeGpu::promise_child(Comm* parent, Comm** place, std::shared_ptr<FakeWorld> world, int rank,
                            const nccl::Config& config) {
  auto* const child = make_comm(std::move(world), rank, config);
  parent->has_child_coming = true;
  births_.emplace_back([this, parent, place, child] {
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    const auto held = lock();
    parent->has_child_coming = false;
    std::atomic_ref(*place).store(child, std::memory_order_release);
  });
}

nccl::Result FakeGpu::init(Comm** comm, int size, const nccl::UniqueId& id, int rank, const nccl::Config& config) {
  const auto held = lock();
  auto& world = worlds[std::string(id.bytes.data(), id.bytes.size())];
  if (world == nullptr) world = std::make_shared<FakeWorld>();
  world->size = size;
  world->arrived++;
  *comm = make_comm(world, rank, config);
  note("init " + std::to_string(rank) + "/" + std::to_string(size));
  return Result::in_progress;
}

nccl::Result FakeGpu::state_of(const Comm& comm) const {
  if (comm.async_error != Result::success) return comm.async_error;
  const bool waits =
      comm.has_child_coming || connections_held || launches_held || comm.world->arrived < comm.world->size;
  return waits ? Result::in_progress : Result::success;
}

nccl::Result FakeGpu::issue(FakeCall call, void* handle) {
  const auto held = lock();
  note(std::string(name_of(call.kind)) + " " + stream(handle).name);
  if (call.comm->async_error != Result::success) return call.comm->async_error;
  if (call.comm->has_child_coming) return Result::invalid_argument;  // "before the previous operation returned"
  if (const auto it = factors.find(static_cast<int>(call.op)); it != factors.end()) call.factor = it->second;
  if (call.kind != FakeCall::Kind::send && call.kind != FakeCall::Kind::recv) call.number = call.comm->operations++;
  group_calls.emplace_back(call, handle);
  return group_depth > 0 ? Result::success : end_group();
}

nccl::Result FakeGpu::end_group() {
  if (group_depth > 0) return Result::success;
  const auto calls = std::exchange(group_calls, {});
  if (calls.empty()) return Result::success;
  auto* const handle = calls.front().second;
  // They behave as one kernel: all begin together, and the kernel is complete when all of them are.
  auto left = std::make_shared<std::vector<FakeCall>>();
  for (const auto& [call, stream_of_it] : calls) left->push_back(call);
  enqueue(handle, [this, left] {
    if (left->front().comm->is_aborted) return true;
    if (kernels_held) return false;
    std::erase_if(*left, [this](const FakeCall& call) { return advance(call); });
    return left->empty();
  });
  return launches_held ? Result::in_progress : Result::success;
}

bool FakeGpu::advance(const FakeCall& call) {
  auto& world = *call.comm->world;
  const int rank = call.comm->rank;
  const auto bytes = call.count * size_of(dtype_of_type(call.type));
  if (call.kind == FakeCall::Kind::send) {
    auto copy = call;
    const auto* const data = static_cast<const std::byte*>(call.in);
    copy.sent.assign(data, data + bytes);
    world.sent[{rank, call.peer}].push_back(std::move(copy));
    return true;
  }
  if (call.kind == FakeCall::Kind::recv) {
    auto& queue = world.sent[{call.peer, rank}];
    if (queue.empty()) return false;
    if (bytes > 0) std::memcpy(call.out, queue.front().sent.data(), bytes);
    queue.pop_front();
    return true;
  }
  auto& meeting = world.collectives[call.number];
  if (world.computed.contains(call.number)) return true;
  meeting[rank] = call;
  if (static_cast<int>(meeting.size()) < world.size) return false;
  // Kernels of different operations wait for each other for ever.
  for (const auto& [other, its_call] : meeting) {
    if (its_call.kind != call.kind) return false;
  }
  compute(meeting, world.size);
  world.computed.insert(call.number);
  return true;
}

void FakeGpu::compute(std::map<int, FakeCall>& calls, int size) {
  const auto& first = calls.begin()->second;
  const auto dtype = dtype_of_type(first.type);
  const auto bytes = first.count * size_of(dtype);
  const auto reduce_into = [&](const std::vector<void*>& outs, std::size_t offset) {
    std::vector<const void*> sources;
    std::vector<double> factors_of;
    for (const auto& [rank, call] : calls) {
      sources.push_back(static_cast<const std::byte*>(call.in) + offset);
      factors_of.push_back(call.factor);
    }
    reduce::find_kernel(dtype, kind_of(first.op))(
        {.data = sources.data(), .factors = factors_of.data(), .count = sources.size()},
        {.data = outs.data(), .count = outs.size()}, first.count, static_cast<double>(size));
  };
  std::vector<void*> all;
  for (const auto& [rank, call] : calls) all.push_back(call.out);
  switch (first.kind) {
    case FakeCall::Kind::all_reduce:
      return reduce_into(all, 0);
    case FakeCall::Kind::reduce:
      return reduce_into({calls[first.peer].out}, 0);
    case FakeCall::Kind::broadcast:
      for (auto* const out : all) std::memmove(out, calls[first.peer].in, bytes);
      return;
    case FakeCall::Kind::all_gather:
      for (const auto& [rank, call] : calls) {
        for (auto* const out : all) {
          std::memmove(static_cast<std::byte*>(out) + static_cast<std::size_t>(rank) * bytes, call.in, bytes);
        }
      }
      return;
    case FakeCall::Kind::reduce_scatter:
      for (const auto& [rank, call] : calls) reduce_into({call.out}, static_cast<std::size_t>(rank) * bytes);
      return;
    default:
      std::abort();
  }
}

}  // namespace cohort::test
