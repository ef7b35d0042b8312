// SPDX-License-Identifier: BSD-3-Clause
//
// Operations to be interrupted, in all forms that the shared-memory engine has: small (in the post), staged (ordinary
// memory), direct (memory of the group), and messages.
#pragma once

#include <cohort/process_group.h>

#include <ostream>
#include <span>
#include <vector>

namespace cohort::test {

/// The memory that they use.
class Scratch {
 public:
  static constexpr std::size_t large = 600'000;  ///< elements: several chunks

  explicit Scratch(ProcessGroup& group) : ranks_(static_cast<std::size_t>(group.size())) {
    if (group.capabilities().group_memory) memory_ = group.allocate(large * sizeof(float));
  }
  std::vector<float>& data(std::size_t elements) { return sized(data_, elements); }
  std::vector<float>& for_all(std::size_t elements) { return sized(all_, elements * ranks_); }
  std::vector<float>& from_all(std::size_t elements) { return sized(received_, elements * ranks_); }
  std::span<float> shared() const { return memory_.as<float>(); }

 private:
  static std::vector<float>& sized(std::vector<float>& data, std::size_t elements) {
    data.resize(elements);
    return data;
  }
  std::size_t ranks_;
  std::vector<float> data_;
  std::vector<float> all_;
  std::vector<float> received_;
  GroupMemory memory_;
};

struct InterruptedOperation {
  const char* name;
  void (*run)(ProcessGroup& group, Scratch& scratch);

  friend void PrintTo(const InterruptedOperation& operation, std::ostream* out) { *out << operation.name; }
};

inline void exchange_with_neighbours(ProcessGroup& group, Scratch& scratch, std::size_t elements) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  auto& out = scratch.for_all(elements);
  auto& in = scratch.from_all(elements);
  auto sending = group.send(out, next, {.async_op = true});
  group.recv(in, previous);
  sending.wait();
}

inline constexpr InterruptedOperation interrupted_operations[] = {
    {"SmallAllReduce", [](ProcessGroup& group, Scratch& scratch) { group.all_reduce(scratch.data(4)); }},
    {"StagedAllReduce", [](ProcessGroup& group, Scratch& scratch) { group.all_reduce(scratch.data(Scratch::large)); }},
    {"DirectAllReduce", [](ProcessGroup& group, Scratch& scratch) { group.all_reduce(scratch.shared()); }},
    {"WaitForAllReduce",
     [](ProcessGroup& group, Scratch& scratch) {
       group.all_reduce(scratch.data(Scratch::large), {.async_op = true}).wait();
     }},
    {"SmallBroadcast", [](ProcessGroup& group, Scratch& scratch) { group.broadcast(scratch.data(4)); }},
    {"StagedBroadcast", [](ProcessGroup& group, Scratch& scratch) { group.broadcast(scratch.data(Scratch::large)); }},
    {"StagedReduce", [](ProcessGroup& group,
                        Scratch& scratch) { group.reduce(scratch.data(Scratch::large), {.root = group.size() - 1}); }},
    {"StagedAllGather",
     [](ProcessGroup& group, Scratch& scratch) { group.all_gather(scratch.for_all(200'000), scratch.data(200'000)); }},
    {"StagedReduceScatter",
     [](ProcessGroup& group, Scratch& scratch) {
       group.reduce_scatter(scratch.data(200'000), scratch.for_all(200'000));
     }},
    {"AllToAll", [](ProcessGroup& group,
                    Scratch& scratch) { group.all_to_all(scratch.from_all(100'000), scratch.for_all(100'000)); }},
    {"Barrier", [](ProcessGroup& group, Scratch&) { group.barrier(); }},
    {"SmallMessage", [](ProcessGroup& group, Scratch& scratch) { exchange_with_neighbours(group, scratch, 4); }},
    {"LargeMessage", [](ProcessGroup& group, Scratch& scratch) { exchange_with_neighbours(group, scratch, 300'000); }},
};

}  // namespace cohort::test
