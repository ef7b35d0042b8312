// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/graph_search.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

namespace cohort::ddp {

std::vector<bool> parameters_reached_from(std::span<const at::Tensor> outputs,
                                          const std::unordered_map<const void*, std::size_t>& accumulators,
                                          std::size_t parameters) {
  using torch::autograd::Node;
  std::vector<bool> is_reached(parameters);
  std::unordered_set<Node*> seen;
  std::vector<Node*> left;
  const auto visit = [&](Node* node) {
    if (node == nullptr || !seen.insert(node).second) return;
    if (const auto found = accumulators.find(node); found != accumulators.end()) is_reached[found->second] = true;
    left.push_back(node);
  };
  for (const auto& output : outputs) {
    if (output.defined() && output.requires_grad()) {
      visit(torch::autograd::impl::gradient_edge(output).function.get());
    }
  }
  while (!left.empty()) {
    auto* const node = left.back();
    left.pop_back();
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return is_reached;
}

}  // namespace cohort::ddp
