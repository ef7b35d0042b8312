// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/dtype.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "core/parse.h"

namespace cohort {

namespace {

/// The first name of a type is its own; the others are accepted.
constexpr std::array<std::pair<std::string_view, DType>, 38> dtype_names = {{
    {"f16", DType::f16},
    {"float16", DType::f16},
    {"half", DType::f16},
    {"bf16", DType::bf16},
    {"bfloat16", DType::bf16},
    {"f32", DType::f32},
    {"float32", DType::f32},
    {"float", DType::f32},
    {"f64", DType::f64},
    {"float64", DType::f64},
    {"double", DType::f64},
    {"i8", DType::i8},
    {"int8", DType::i8},
    {"u8", DType::u8},
    {"uint8", DType::u8},
    {"byte", DType::u8},
    {"i16", DType::i16},
    {"int16", DType::i16},
    {"short", DType::i16},
    {"i32", DType::i32},
    {"int32", DType::i32},
    {"int", DType::i32},
    {"i64", DType::i64},
    {"int64", DType::i64},
    {"long", DType::i64},
    {"bool", DType::boolean},
    {"boolean", DType::boolean},
    {"complex64", DType::complex64},
    {"cfloat", DType::complex64},
    {"complex128", DType::complex128},
    {"cdouble", DType::complex128},
    {"u16", DType::u16},
    {"uint16", DType::u16},
    {"u32", DType::u32},
    {"uint32", DType::u32},
    {"u64", DType::u64},
    {"uint64", DType::u64},
    {"raw", DType::raw},
}};

}  // namespace

std::string_view to_string(DType dtype) {
  for (const auto& [name, type] : dtype_names) {
    if (type == dtype) return name;
  }
  throw TypeError(fmt::format("unknown dtype {}", static_cast<int>(dtype)));
}

DType parse_dtype(std::string_view name) {
  std::vector<std::string_view> known;
  for (const auto& [known_name, type] : dtype_names) {
    if (known_name == name) return type;
    known.push_back(known_name);
  }
  const auto hint = did_you_mean(name, known);
  throw ValueError(
      fmt::format("unknown dtype \"{}\"{}", name, hint.empty() ? "" : fmt::format(": did you mean \"{}\"?", hint)));
}

}  // namespace cohort
