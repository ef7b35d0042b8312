// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/torch/graph_partition.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "graph/names.h"

namespace cohort {

namespace {

constexpr auto never = std::numeric_limits<std::size_t>::max();

template <class Function>
void for_each_operand(const GraphNode& node, const Function& function) {
  for (const auto& operand : node.operands) {
    for (const auto value : operand.values) function(value);
  }
  for (const auto& inner : node.body) for_each_operand(inner, function);
}

class Partitioner {
 public:
  Partitioner(const Graph& graph, const BucketPartitionOptions& options)
      : graph_(graph),
        options_(options),
        is_open_(graph.values.size()),
        nodes_(std::min(options.nodes, graph.nodes.size())),
        last_use_(graph.values.size()) {
    for (const auto value : options.parameters) is_open_[value] = true;
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      for_each_operand(graph.nodes[i], [&](std::size_t value) { last_use_[value] = i; });
    }
    for (const auto value : graph.outputs) last_use_[value] = never;
  }

  GraphPartition run() {
    bucket_ = {.begin = nodes_, .end = nodes_};
    for (auto i = nodes_; i-- > 0;) {
      if (bucket_.begin < bucket_.end && bucket_.bytes >= (pieces_.empty() ? options_.first_cap : options_.cap)) {
        if (has_output()) {
          close();
        } else {
          ++extended_;
        }
      }
      add(i);
    }
    close();
    // What leads has no parameters: nobody would wait for it.
    if (pieces_.size() > 1 && pieces_.back().bytes == 0) {
      pieces_[pieces_.size() - 2].begin = pieces_.back().begin;
      pieces_.pop_back();
    }
    std::reverse(pieces_.begin(), pieces_.end());
    return {.pieces = std::move(pieces_), .warnings = std::move(warnings_)};
  }

 private:
  void add(std::size_t index) {
    bucket_.begin = index;
    const auto& node = graph_.nodes[index];
    for_each_operand(node, [&](std::size_t value) {
      if (!is_open_[value]) return;
      is_open_[value] = false;
      bucket_.parameters.push_back(value);
      bucket_.bytes += bytes_of(graph_.values[value]);
    });
    for (const auto value : node.results) latest_use_ = std::max(latest_use_, last_use_[value]);
    for (const auto value : node.writes) latest_use_ = std::max(latest_use_, last_use_[value]);
  }

  bool has_output() const { return latest_use_ >= bucket_.end; }

  void close() {
    if (extended_ > 0) {
      warnings_.push_back(fmt::format(
          "bucket {} reached its cap, but nothing outside uses what its nodes make: it was extended by {}, to {}",
          pieces_.size() + 1, graph_names::counted(extended_, "node"), graph_names::bytes_text(bucket_.bytes)));
    }
    if (bucket_.begin < bucket_.end) pieces_.push_back(bucket_);
    bucket_ = {.begin = bucket_.begin, .end = bucket_.begin};
    extended_ = 0;
    latest_use_ = 0;
  }

  const Graph& graph_;
  const BucketPartitionOptions& options_;
  std::vector<bool> is_open_;  // parameters that no bucket has yet
  std::size_t nodes_;
  std::vector<std::size_t> last_use_;  // the node that uses each value last; never: the step returns it
  GraphPiece bucket_;
  std::size_t latest_use_ = 0;      // of anything that the bucket's nodes make
  std::size_t extended_ = 0;        // by so many nodes beyond its cap
  std::vector<GraphPiece> pieces_;  // the last nodes' first
  std::vector<std::string> warnings_;
};

}  // namespace

GraphPartition partition_by_buckets(const Graph& graph, const BucketPartitionOptions& options) {
  if (options.first_cap > options.cap) {
    throw AssertionError(fmt::format("partition: the first bucket's cap of {} bytes is larger than the cap of {} bytes",
                                     options.first_cap, options.cap));
  }
  for (const auto value : options.parameters) {
    if (value >= graph.values.size()) {
      throw ValueError(
          fmt::format("partition: parameter {} is no value of the graph, which has {}", value, graph.values.size()));
    }
  }
  return Partitioner(graph, options).run();
}

}  // namespace cohort
