// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <utility>

namespace cohort {

/// What operators take for `Tensor?`: c10::optional before libtorch 2.4, then std::optional.
using OptionalTensor = decltype(std::declval<const c10::IValue&>().toOptional<at::Tensor>());

/// An empty optional corresponds to an undefined tensor.
inline at::Tensor tensor_or_undefined(const OptionalTensor& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}
inline OptionalTensor if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : OptionalTensor();
}

}  // namespace cohort
