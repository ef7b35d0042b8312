// SPDX-License-Identifier: BSD-3-Clause
//
// Replays a step on a GPU as a CUDA graph (device_graph.h), collectives of NCCL included. The first replay calls every
// kernel, which warms libraries up; the next one captures. From then on a replay
//
//   runs what the host does and asks for its numbers,      (host_part.h)
//   copies the arguments to where the graph reads them,
//   launches the graph,
//   calls what is not in it: the tail.                     (graph_partition.h)
//
// A number is part of the graph as long as it does not change. When it does, its instruction goes to the tail, and the
// graph is captured anew. Results are copies. Gradients stay in the memory of the graph, which the next replay
// overwrites.
//
// What cannot be captured is replayed by direct calls instead, and explain() says why.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <cohort/work.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch/capture/device_graph.h"
#include "torch/capture/graph_partition.h"
#include "torch/capture/host_part.h"
#include "torch/capture/program.h"
#include "torch/capture/replay.h"

namespace cohort::recording {

class GraphReplayer {
 public:
  explicit GraphReplayer(std::shared_ptr<const Program> program);

  /// Whether the step has anything to do with GPUs.
  static bool concerns(const Program& program);

  /// As those of Replayer. A collective in the graph that failed or missed its deadline breaks its group as always; the
  /// error comes out of the next call.
  std::vector<at::Tensor> run(std::span<const at::Tensor> arguments, std::span<const at::Tensor> gradients);
  std::vector<at::Tensor> take_left_gradients();

  /// One line for explain().
  std::string explain() const;

 private:
  /// The step in the order in which it is replayed.
  struct Order {
    explicit Order(Program ordered) : replayer(std::make_shared<const Program>(std::move(ordered))) {}
    Replayer replayer;
    std::size_t captured = 0;  ///< instructions in the graph, which come first
    std::size_t all = 0;
    std::unordered_set<std::size_t> storages{};  ///< memory of the graph
    std::vector<ProcessGroupPtr> groups{};       ///< of its collectives
    std::vector<std::size_t> numbers{};          ///< of the host, in it
  };
  struct Captured {
    std::unique_ptr<DeviceGraph> graph;
    std::vector<at::Tensor> arguments;       ///< where it reads them
    std::vector<const void*> gradients;      ///< the addresses it has been captured with
    std::vector<at::Tensor> values;          ///< what the tail and the caller get from it
    std::vector<at::Tensor> left_gradients;  ///< objects for the caller
    at::Tensor empty;                        ///< on the device
  };

  void find_obstacles();
  void find_used_values();
  void note_changing_numbers();
  void note_equal_numbers();
  bool numbers_fit() const;
  std::unique_ptr<Order> ordered() const;
  std::vector<Instruction> batched(std::span<const std::size_t> instructions) const;
  std::vector<const void*> addresses(std::span<const at::Tensor> gradients) const;
  void capture(std::span<const at::Tensor> arguments, std::span<const at::Tensor> gradients);
  std::vector<at::Tensor> launch(std::span<const at::Tensor> arguments);
  void watch_groups();
  void give_up(std::string reason);
  void throw_errors_of_last_launch();

  std::shared_ptr<const Program> program_;
  Replayer direct_;
  HostPart host_;
  std::vector<std::string> obstacles_;  // for each instruction; empty if it can be in a graph
  std::vector<bool> is_copied_;         // for each argument: whether the step uses it
  std::vector<bool> is_copied_back_;    // and writes it
  std::vector<bool> is_gradient_used_;
  std::vector<at::Generator> generators_;
  c10::Device device_{c10::DeviceType::CPU};

  std::vector<c10::Scalar> numbers_before_;  // of the host, in the last replay
  std::vector<bool> is_changing_;            // for each of them
  std::vector<std::size_t> equal_to_;        // for each of them, another one that always has the same value, or itself
  std::unique_ptr<Order> order_;
  std::optional<Captured> captured_;
  std::vector<Work> watched_;  // the ends of the last launch, one for each group
  int captures_ = 0;
  bool is_warm_ = false;
  std::string reason_;  // not empty: the step is replayed by direct calls
};

}  // namespace cohort::recording
