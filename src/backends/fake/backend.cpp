// SPDX-License-Identifier: BSD-3-Clause
#include "backends/fake/backend.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/common/shared_bytes.h"
#include "core/rank_index.h"
#include "group/own_part.h"
#include "reduce/copy.h"
#include "reduce/kernels.h"

namespace cohort::fake {

namespace {

class Nothing final : public Transfer {
 public:
  explicit Nothing(int source) : source_(source) {}
  bool advance() override { return true; }
  int source() const override { return source_; }

 private:
  int source_;
};

}  // namespace

FakeBackend::FakeBackend(int rank, int size, FakeOptions options, const cuda::Driver* driver)
    : Backend("fake", rank, size, driver != nullptr),
      options_(options),
      driver_(driver),
      device_memory_(driver == nullptr ? nullptr : std::make_unique<DeviceMemory>(*driver)) {}

BackendPtr FakeBackend::as(int rank, int size) const {
  return std::make_shared<FakeBackend>(rank, size, options_, driver_);
}

Capabilities FakeBackend::capabilities() const {
  return {.operations = ~std::uint64_t{0},
          .group_memory = true,
          .splitting = true,
          .shrinking = true,
          .without_peers = true,
          .aborting = true,
          .premul_sum = true,
          .deterministic_order = true,
          .stream_ordered = is_stream_ordered()};
}

int FakeBackend::perform(const Operation& op, Call& call) {
  if (options_.error_on_collective && !is_p2p(op.type)) {
    throw BackendError("the fake group was told to refuse collectives (error_on_collective)",
                       {.op = std::string(to_string(call.op())), .sequence = call.sequence()});
  }
  const int source = Backend::perform(op, call);
  // Its Work is completed when the call returns, so that nobody has to be told later.
  const bool is_whole = op.type == call.op();
  const bool has_memory = op.type != OpType::barrier && !is_p2p(op.type);
  if (is_whole && has_memory && call.on_stream() != nullptr && call.on_stream()->is_async) {
    device_memory_->wait(op, call);
  }
  return source;
}

void FakeBackend::copy(Bytes to, ConstBytes from, const Operation& op, Call& call) {
  if (to.data() == from.data() || to.empty()) return;
  if (call.on_stream() != nullptr) return device_memory_->copy(to, from, op, call);
  reduce::copy(to.data(), from.data(), std::min(to.size(), from.size()));
}

void FakeBackend::combine_uniform(ConstBytes in, const Operation& op, Call& call) {
  if (!options_.simulate_uniform_ranks) return copy(op.out(), in, op, call);
  const auto combine = [&](ConstBytes from, Bytes to) {
    // One source per rank, all of them the same memory: this gives the same bits as ranks that share memory.
    const auto n = index_of(size());
    const std::vector<const void*> sources(n, from.data());
    const std::vector<double> factors(n, op.reduce.factor());
    void* const out = to.data();
    reduce::find_kernel(op.dtype, op.reduce.kind())({.data = sources.data(), .factors = factors.data(), .count = n},
                                                    {.data = &out, .count = 1}, op.count_of(to),
                                                    static_cast<double>(size()));
  };
  if (call.on_stream() != nullptr) return device_memory_->apply(combine, in, op.out(), op, call);
  combine(in, op.out());
}

void FakeBackend::all_reduce(const Operation& op, Call& call) {
  combine_uniform(op.in(), op, call);
}
void FakeBackend::reduce(const Operation& op, Call& call) {
  if (rank() == op.root) combine_uniform(op.in(), op, call);
}
void FakeBackend::broadcast(const Operation& /*op*/, Call& /*call*/) {}
void FakeBackend::all_gather(const Operation& op, Call& call) {
  for (const auto& out : op.outs) copy(out, op.in(), op, call);
}
void FakeBackend::gather(const Operation& op, Call& call) {
  for (const auto& out : op.outs) copy(out, op.in(), op, call);
}
void FakeBackend::scatter(const Operation& op, Call& call) {
  if (rank() == op.root) copy(op.out(), op.ins[index_of(rank())], op, call);
}
void FakeBackend::reduce_scatter(const Operation& op, Call& call) {
  combine_uniform(op.ins[index_of(rank())], op, call);
}
void FakeBackend::all_to_all(const Operation& op, Call& call) {
  const auto own = index_of(rank());
  for (std::size_t peer = 0; peer < op.outs.size(); ++peer) {
    // With uniform ranks, every rank sends to this one what it sends to itself; otherwise what is sent to a peer comes
    // back.
    copy(op.outs[peer], op.ins[options_.simulate_uniform_ranks ? own : peer], op, call);
  }
}
void FakeBackend::barrier(const Operation& /*op*/, Call& /*call*/) {}

std::unique_ptr<Transfer> FakeBackend::start_send(const Operation& /*op*/, Call& /*call*/) {
  return std::make_unique<Nothing>(rank());
}
std::unique_ptr<Transfer> FakeBackend::start_recv(const Operation& op, Call& /*call*/) {
  return std::make_unique<Nothing>(std::max(op.peer, 0));
}

GroupMemory FakeBackend::allocate(std::size_t bytes) {
  auto memory = shared_bytes(bytes);
  auto* const data = memory->data();
  return {std::move(memory), data, bytes};
}

BackendPtr FakeBackend::split(const BackendSplit& split, Deadline deadline) {
  return partition(std::span(&split, 1), deadline);
}

BackendPtr FakeBackend::partition(std::span<const BackendSplit> parts, Deadline /*deadline*/) {
  const auto own = find_own_part(parts, rank());
  if (!own) return nullptr;
  return as(own->rank, static_cast<int>(parts[own->index].ranks.size()));
}

BackendShrunk FakeBackend::shrink(std::span<const int> excluded, Deadline /*deadline*/) {
  std::vector<int> ranks;
  for (int each = 0; each < size(); ++each) {
    if (std::find(excluded.begin(), excluded.end(), each) == excluded.end()) ranks.push_back(each);
  }
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  if (place == ranks.end()) return {};
  const int new_rank = static_cast<int>(place - ranks.begin());
  const int new_size = static_cast<int>(ranks.size());
  return {.ranks = std::move(ranks), .backend = as(new_rank, new_size)};
}

ProcessGroupPtr make_group_on(const cuda::Driver* driver, const StorePtr& store, int rank, int size,
                              std::chrono::milliseconds timeout, const Options& options) {
  OptionReader read(options, "fake");
  FakeOptions chosen;
  chosen.error_on_collective = read.get("error_on_collective", false);
  chosen.simulate_uniform_ranks = read.get("simulate_uniform_ranks", false);
  read.finish();
  // There are no peers to agree with.
  auto group = std::make_shared<ProcessGroup>(store, rank, size, timeout);
  const auto on_host = std::make_shared<FakeBackend>(rank, size, chosen);
  group->add_backend(DeviceType::cpu, on_host);
  group->add_backend(DeviceType::cuda,
                     driver == nullptr ? on_host : std::make_shared<FakeBackend>(rank, size, chosen, driver));
  return group;
}

ProcessGroupPtr make_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                           const Device& /*device*/, const Options& options) {
  const auto& system = cuda::system_driver();
  return make_group_on(system.missing.empty() ? &system.driver : nullptr, store, rank, size, timeout, options);
}

}  // namespace cohort::fake
