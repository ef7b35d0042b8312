// SPDX-License-Identifier: BSD-3-Clause
//
// Any rank of any size, without peers: for planning, tracing and tests. What comes from peers is filled from this
// rank's own memory where that gives a value, and left as it is otherwise; nothing uninitialised is ever exposed.
//
// Option simulate_uniform_ranks: every rank is taken to hold what this one holds, so that a sum of W ranks is W times
// the value. Option error_on_collective: every collective (not point-to-point) throws.
#pragma once

#include <cohort/backend.h>
#include <cohort/new_group.h>

namespace cohort::fake {

struct FakeOptions {
  bool error_on_collective = false;
  bool simulate_uniform_ranks = false;
};

class FakeBackend final : public Backend {
 public:
  FakeBackend(int rank, int size, FakeOptions options) : Backend("fake", rank, size), options_(options) {}

  Capabilities capabilities() const override;
  void all_reduce(const Reduction& reduction, Call& call) override;
  void reduce(const Reduction& reduction, int root, Call& call) override;
  void broadcast(Bytes data, int root, Call& call) override;
  void all_gather(ConstBytes in, std::span<const Bytes> outs, Call& call) override;
  void gather(ConstBytes in, std::span<const Bytes> outs, int root, Call& call) override;
  void scatter(std::span<const ConstBytes> ins, Bytes out, int root, Call& call) override;
  void reduce_scatter(std::span<const ConstBytes> ins, const Reduction& reduction, Call& call) override;
  void all_to_all(std::span<const ConstBytes> ins, std::span<const Bytes> outs, Call& call) override;
  void barrier(Call& call) override;
  std::unique_ptr<Transfer> start_send(ConstBytes data, int peer, int tag, Call& call) override;
  std::unique_ptr<Transfer> start_recv(Bytes data, int peer_or_any, int tag, Call& call) override;
  GroupMemory allocate(std::size_t bytes) override;
  BackendPtr split(const BackendSplit& split, Deadline deadline) override;
  BackendShrunk shrink(std::span<const int> excluded, Deadline deadline) override;

 private:
  void check(const Call& call) const;
  /// `in` combined with itself as if all ranks held it.
  void combine_uniform(const void* in, void* out, const Reduction& reduction) const;

  const FakeOptions options_;
};

ProcessGroupPtr make_group(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                           const Device& device, const Options& options);

}  // namespace cohort::fake
