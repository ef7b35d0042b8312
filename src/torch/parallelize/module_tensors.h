// SPDX-License-Identifier: BSD-3-Clause
//
// Finds the parameters of a module, to replace them. libtorch keeps each of them twice: in the module's dictionary, and
// in the member that forward uses. The members of libtorch's own modules are known here; of others the caller gives
// them.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace cohort {

/// A parameter and all handles to it.
struct ModuleTensor {
  std::string name;         ///< within the whole module
  std::string module_name;  ///< of the module that has it; "" for the outermost
  std::string own_name;     ///< within that module
  torch::nn::Module* module = nullptr;
  std::vector<at::Tensor*> handles{};  ///< at least the one in the dictionary
};

/// Throws Error if a parameter of a module whose members are not known is not among `members`. A parameter that several
/// modules share is listed once, with all its handles.
std::vector<ModuleTensor> parameters_of(torch::nn::Module& module, const std::vector<at::Tensor*>& members);

}  // namespace cohort
