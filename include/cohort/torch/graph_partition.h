// SPDX-License-Identifier: BSD-3-Clause
//
// Cuts the forward part of a step's graph into pieces whose backward parts fill DDP's buckets: what compiles or
// schedules the pieces separately can start the all_reduce of a bucket while the backward of the next piece runs.
//
//   void show_pieces(const cohort::Graph& graph, const std::vector<std::size_t>& parameters, std::size_t forward) {
//     const auto partition = cohort::partition_by_buckets(graph, {.parameters = parameters, .nodes = forward});
//     for (const auto& piece : partition.pieces) std::cout << piece.begin << " to " << piece.end << '\n';
//   }
//
// Backward goes through the nodes in reverse, so the buckets are filled from the last node on. A node belongs to the
// bucket that is open; when the bucket's parameters have reached the cap, the next node opens another one, provided
// that something outside uses what the bucket makes. Otherwise a piece would be cut off that has no output: the bucket
// is extended, and a warning says so.
#pragma once

#include <cohort/export.h>
#include <cohort/torch/graph.h>

#include <cstddef>
#include <string>
#include <vector>

namespace cohort {

struct BucketPartitionOptions {
  /// Values of the graph: the parameters that DDP reduces, without those that need no gradient and those it ignores.
  std::vector<std::size_t> parameters{};
  /// How many of the graph's first nodes are the forward part.
  std::size_t nodes = static_cast<std::size_t>(-1);
  /// The cap of the first bucket, which is that of the last nodes: smaller, so that communication begins early.
  std::size_t first_cap = std::size_t{1} << 20;
  std::size_t cap = std::size_t{25} << 20;
};

/// The nodes [begin, end).
struct GraphPiece {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t bytes = 0;                  ///< of the parameters
  std::vector<std::size_t> parameters{};  ///< in the order in which backward comes upon them; each is in one piece
  friend bool operator==(const GraphPiece&, const GraphPiece&) = default;
};

struct GraphPartition {
  std::vector<GraphPiece> pieces{};  ///< in the order of the nodes; a single one if there is nothing to gain by cutting
  std::vector<std::string> warnings{};
};

/// Throws AssertionError if the first cap is larger than the cap, and ValueError if a parameter is no value of the
/// graph.
COHORT_API GraphPartition partition_by_buckets(const Graph& graph, const BucketPartitionOptions& options);

}  // namespace cohort
