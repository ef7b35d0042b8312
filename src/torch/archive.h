// SPDX-License-Identifier: BSD-3-Clause
#pragma once

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

}  // namespace cohort
