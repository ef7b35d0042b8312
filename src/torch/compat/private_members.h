// SPDX-License-Identifier: BSD-3-Clause
//
// The dictionaries of a torch::nn::Module, in every version of libtorch from 1.13 to 2.14. Its public functions copy
// them with all names, and do not let anybody replace what is registered.
#pragma once

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <memory>
#include <string>

namespace cohort {

using TensorDictionary = torch::OrderedDict<std::string, at::Tensor>;
using ModuleDictionary = torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>;

namespace detail {

// Only an explicit instantiation may name private members, and a friend that it defines hands them out.
template <class Tag, typename Tag::Type member>
struct Reveal {
  friend typename Tag::Type revealed(Tag /*tag*/) { return member; }
};
struct ParametersTag {
  using Type = TensorDictionary torch::nn::Module::*;
  friend Type revealed(ParametersTag /*tag*/);
};
struct BuffersTag {
  using Type = TensorDictionary torch::nn::Module::*;
  friend Type revealed(BuffersTag /*tag*/);
};
struct ChildrenTag {
  using Type = ModuleDictionary torch::nn::Module::*;
  friend Type revealed(ChildrenTag /*tag*/);
};
template struct Reveal<ParametersTag, &torch::nn::Module::parameters_>;
template struct Reveal<BuffersTag, &torch::nn::Module::buffers_>;
template struct Reveal<ChildrenTag, &torch::nn::Module::children_>;

}  // namespace detail

inline const TensorDictionary& parameters_in(const torch::nn::Module& module) {
  return module.*revealed(detail::ParametersTag());
}
inline TensorDictionary& parameters_in(torch::nn::Module& module) {
  return module.*revealed(detail::ParametersTag());
}
inline const TensorDictionary& buffers_in(const torch::nn::Module& module) {
  return module.*revealed(detail::BuffersTag());
}
inline TensorDictionary& buffers_in(torch::nn::Module& module) {
  return module.*revealed(detail::BuffersTag());
}
inline const ModuleDictionary& children_in(const torch::nn::Module& module) {
  return module.*revealed(detail::ChildrenTag());
}

}  // namespace cohort
