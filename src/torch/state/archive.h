// SPDX-License-Identifier: BSD-3-Clause
//
// The same code writes an object's state into libtorch's archives, for torch::save, and into a StateDict, for
// checkpoints.
#pragma once

#include <ATen/core/Tensor.h>
#include <cohort/torch/state_dict.h>
#include <torch/serialize/archive.h>

#include <concepts>
#include <cstdint>
#include <string>

namespace cohort {

/// Archives have signed integers only, so these are stored as such.
template <class T>
concept UnsignedNumber = std::unsigned_integral<T> && !std::same_as<T, bool>;

template <class T>
void write_value(torch::serialize::OutputArchive& archive, const std::string& key, const T& value) {
  if constexpr (UnsignedNumber<T>) {
    archive.write(key, c10::IValue(static_cast<std::int64_t>(value)));
  } else {
    archive.write(key, c10::IValue(value));
  }
}

template <class T>
T read_value(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  if constexpr (UnsignedNumber<T>) {
    return static_cast<T>(value.toInt());
  } else {
    return value.to<T>();
  }
}

inline void write_tensor(torch::serialize::OutputArchive& archive, const std::string& key, const at::Tensor& tensor) {
  archive.write(key, tensor, /*is_buffer=*/true);
}

/// Leaves the tensor as it is if there is none of this name.
inline void read_tensor(torch::serialize::InputArchive& archive, const std::string& key, at::Tensor& tensor) {
  archive.try_read(key, tensor, /*is_buffer=*/true);
}

template <class T>
void write_value(StateDict& state, const std::string& key, const T& value) {
  state.set(key, value);
}

template <class T>
T read_value(const StateDict& state, const std::string& key) {
  return state.get<T>(key);
}

inline void write_tensor(StateDict& state, const std::string& key, const at::Tensor& tensor) {
  state.set(key, tensor);
}

inline void read_tensor(const StateDict& state, const std::string& key, at::Tensor& tensor) {
  if (state.has(key)) tensor = state.tensor(key);
}

}  // namespace cohort
