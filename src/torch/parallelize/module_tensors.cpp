// SPDX-License-Identifier: BSD-3-Clause
#include "torch/parallelize/module_tensors.h"

#include <cohort/error.h>
#include <fmt/format.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>

#include "torch/compat/private_members.h"

namespace cohort {

namespace {

template <class M>
bool add_weight_and_bias(torch::nn::Module& module, std::vector<at::Tensor*>& members) {
  auto* known = dynamic_cast<M*>(&module);
  if (known == nullptr) return false;
  members.insert(members.end(), {&known->weight, &known->bias});
  return true;
}

/// The tensors that forward of a module of libtorch uses.
std::vector<at::Tensor*> known_members(torch::nn::Module& module) {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace): a list of its classes
  std::vector<at::Tensor*> members;
  if (auto* embedding = dynamic_cast<EmbeddingImpl*>(&module)) {
    members.push_back(&embedding->weight);
    return members;
  }
  static_cast<void>(
      add_weight_and_bias<LinearImpl>(module, members) || add_weight_and_bias<LayerNormImpl>(module, members) ||
      add_weight_and_bias<GroupNormImpl>(module, members) || add_weight_and_bias<Conv1dImpl>(module, members) ||
      add_weight_and_bias<Conv2dImpl>(module, members) || add_weight_and_bias<Conv3dImpl>(module, members));
  return members;
}

}  // namespace

std::vector<ModuleTensor> parameters_of(torch::nn::Module& module, const std::vector<at::Tensor*>& members) {
  std::vector<ModuleTensor> found;
  const auto add = [&](torch::nn::Module& owner, const std::string& owner_name) {
    auto candidates = known_members(owner);
    candidates.insert(candidates.end(), members.begin(), members.end());
    for (auto& item : parameters_in(owner)) {
      auto& tensor = item.value();
      if (!tensor.defined()) continue;
      std::vector<at::Tensor*> handles{&tensor};
      for (auto* each : candidates) {
        if (each->is_same(tensor)) handles.push_back(each);
      }
      const auto name = owner_name.empty() ? item.key() : owner_name + "." + item.key();
      if (handles.size() == 1) {
        throw Error(
            fmt::format("\"{}\" of {}: the member that holds this parameter cannot be reached; give its address in the "
                        "options ({{.members = {{&net->member}}}}), or use a module of libtorch for it",
                        name, owner.name()));
      }
      const auto same = std::find_if(found.begin(), found.end(),
                                     [&](const ModuleTensor& each) { return each.handles[0]->is_same(tensor); });
      if (same != found.end()) {
        same->handles.insert(same->handles.end(), handles.begin(), handles.end());
        continue;
      }
      found.push_back({.name = name,
                       .module_name = owner_name,
                       .own_name = item.key(),
                       .module = &owner,
                       .handles = std::move(handles)});
    }
  };
  add(module, "");
  for (const auto& item : module.named_modules({}, false)) add(*item.value(), item.key());
  return found;
}

}  // namespace cohort
