// SPDX-License-Identifier: BSD-3-Clause
#include "torch/ddp/selection.h"

#include <cohort/torch/sync_batch_norm.h>
#include <torch/nn/modules/embedding.h>

#include <unordered_set>

namespace cohort::ddp {

namespace {

bool makes_sparse_gradients(const ::torch::nn::Module& module) {
  if (const auto* const embedding = dynamic_cast<const ::torch::nn::EmbeddingImpl*>(&module)) {
    return embedding->options.sparse();
  }
  if (const auto* const bag = dynamic_cast<const ::torch::nn::EmbeddingBagImpl*>(&module)) {
    return bag->options.sparse();
  }
  return false;
}

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

}  // namespace

Selection select(const ::torch::nn::Module& module, const std::set<std::string>& ignored) {
  Selection selection;
  std::unordered_set<const void*> seen;  // a tied weight has several names
  const auto take = [&](const std::string& path, const ::torch::nn::Module& owner) {
    for (const auto& parameter : owner.named_parameters(false)) {
      const auto name = joined(path, parameter.key());
      const auto& tensor = parameter.value();
      if (ignored.contains(name) || !tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      if (tensor.requires_grad()) {
        selection.parameters.tensors.push_back(tensor);
        selection.parameters.names.push_back(name);
        selection.parameters.expects_sparse.push_back(makes_sparse_gradients(owner));
      } else {
        selection.frozen.push_back(tensor);
      }
    }
    if (sync_batch_norm_group(owner) != nullptr) selection.has_sync_batch_norm = true;
  };
  take("", module);
  for (const auto& child : module.named_modules("", false)) take(child.key(), *child.value());
  return selection;
}

std::vector<std::pair<std::string, at::Tensor>> select_buffers(const ::torch::nn::Module& module,
                                                               const std::set<std::string>& ignored) {
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  std::unordered_set<const void*> seen;
  for (const auto& buffer : module.named_buffers(true)) {
    if (!buffer.value().defined() || ignored.contains(buffer.key())) continue;
    if (seen.insert(buffer.value().unsafeGetTensorImpl()).second) buffers.emplace_back(buffer.key(), buffer.value());
  }
  return buffers;
}

}  // namespace cohort::ddp
