// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/dtype.h>

#include "support/expect_error.h"

namespace cohort::test {
namespace {

TEST(DTypeTest, SizesAndNames) {
  struct Row {
    DType dtype;
    std::size_t size;
    const char* name;
    const char* elsewhere;
  };
  for (const auto& [dtype, size, name, elsewhere] :
       {Row{DType::f16, 2, "f16", "half"}, Row{DType::bf16, 2, "bf16", "bfloat16"}, Row{DType::f32, 4, "f32", "float"},
        Row{DType::f64, 8, "f64", "double"}, Row{DType::i8, 1, "i8", "int8"}, Row{DType::u8, 1, "u8", "uint8"},
        Row{DType::i16, 2, "i16", "int16"}, Row{DType::i32, 4, "i32", "int"}, Row{DType::i64, 8, "i64", "int64"},
        Row{DType::boolean, 1, "bool", "bool"}, Row{DType::complex64, 8, "complex64", "cfloat"},
        Row{DType::complex128, 16, "complex128", "cdouble"}, Row{DType::u16, 2, "u16", "uint16"},
        Row{DType::u32, 4, "u32", "uint32"}, Row{DType::u64, 8, "u64", "uint64"}, Row{DType::raw, 1, "raw", "raw"}}) {
    EXPECT_EQ(size_of(dtype), size);
    EXPECT_EQ(to_string(dtype), name);
    EXPECT_EQ(parse_dtype(name), dtype);
    EXPECT_EQ(parse_dtype(elsewhere), dtype);
  }
  EXPECT_ERROR(ValueError, parse_dtype("flaot32"), "did you mean \"float32\"");
  EXPECT_ERROR(TypeError, to_string(static_cast<DType>(200)), "200");
}

TEST(DTypeTest, OfCppTypes) {
  static_assert(dtype_of<float> == DType::f32);
  static_assert(dtype_of<const double> == DType::f64);
  static_assert(dtype_of<long> == DType::i64 && dtype_of<long long> == DType::i64);
  static_assert(dtype_of<signed char> == DType::i8 && dtype_of<unsigned char> == DType::u8);
  static_assert(dtype_of<std::byte> == DType::u8);
  static_assert(dtype_of<bool> == DType::boolean);
  static_assert(dtype_of<std::complex<float>> == DType::complex64);
  static_assert(dtype_of<Float16> == DType::f16 && dtype_of<BFloat16> == DType::bf16);
  static_assert(dtype_of<unsigned short> == DType::u16 && dtype_of<unsigned> == DType::u32);
  static_assert(dtype_of<unsigned long> == DType::u64 && dtype_of<std::size_t> == DType::u64);
  static_assert(!Element<long double> && !Element<int*> && !Element<std::string_view>);
}

}  // namespace
}  // namespace cohort::test
