// SPDX-License-Identifier: BSD-3-Clause
//
// Tensors as values of a graph, which knows nothing of libtorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/graph.h>

#include <cstddef>
#include <string>
#include <utility>

#include "graph/names.h"

namespace cohort::recording {

/// As dtype.h names the types; others in libtorch's words ("qint8", "float8_e4m3fn").
inline std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "f32";
    case at::kDouble:
      return "f64";
    case at::kHalf:
      return "f16";
    case at::kBFloat16:
      return "bf16";
    case at::kChar:
      return "i8";
    case at::kByte:
      return "u8";
    case at::kShort:
      return "i16";
    case at::kInt:
      return "i32";
    case at::kLong:
      return "i64";
    case at::kBool:
      return "bool";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    default:
      break;
  }
  std::string name = c10::toString(type);
  if (name.starts_with("UInt")) return "u" + name.substr(4);  // newer than the oldest libtorch that we build with
  for (auto& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

/// "f32[8, 16]", for tensors of any layout.
inline std::string tensor_text(const at::Tensor& tensor) {
  return to_string(GraphValue{.sizes = tensor.sizes().vec(), .dtype = dtype_name(tensor.scalar_type())});
}

inline GraphValue graph_value_of(const at::Tensor& tensor, GraphValue::Origin origin, std::string name = {}) {
  return {.origin = origin,
          .name = std::move(name),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .dtype = dtype_name(tensor.scalar_type()),
          .element_bytes = static_cast<std::size_t>(tensor.element_size()),
          .device = tensor.device().str()};
}

}  // namespace cohort::recording
