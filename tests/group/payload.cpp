// SPDX-License-Identifier: BSD-3-Clause
#include "group/payload.h"

namespace cohort::test {

ByteVector values(DType dtype, int rank, std::size_t count, std::size_t first) {
  ByteVector bytes(count * size_of(dtype));
  std::size_t at = first * size_of(dtype);
  const auto write = [&]<class T>(T /*type*/, auto&& number) {
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(T), at += sizeof(T)) {
      const auto random = scrambled(at * 512 + static_cast<std::uint64_t>(rank) + 1);
      T value;
      std::memcpy(&value, &random, sizeof(T));
      if (random % 16 != 0 || !is_order_known()) value = number(random >> 8U);
      std::memcpy(bytes.data() + i, &value, sizeof(T));
    }
  };
  const auto real = [](std::uint64_t random) {
    if (!is_order_known()) {
      constexpr std::array<double, 6> exact{0.5, 1, 2, -0.5, -1, -2};
      return exact[random % exact.size()];
    }
    const double size = 0.25 + static_cast<double>(random % 1'000'003) / 300'007.0;
    return random % 2 == 0 ? size : -size;
  };
  switch (dtype) {
    case DType::f16:
      write(std::uint16_t{}, [&](std::uint64_t random) { return to_half(static_cast<float>(real(random)), 10); });
      break;
    case DType::bf16:
      write(std::uint16_t{}, [&](std::uint64_t random) { return to_half(static_cast<float>(real(random)), 7); });
      break;
    case DType::f32:
    case DType::complex64:
      write(float{}, [&](std::uint64_t random) { return static_cast<float>(real(random)); });
      break;
    case DType::f64:
    case DType::complex128:
      write(double{}, real);
      break;
    case DType::boolean:
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        constexpr std::array<std::uint8_t, 4> bools{0, 1, 2, 255};
        bytes[i] = bools[scrambled((at + i) * 512 + static_cast<std::uint64_t>(rank)) % 4];
      }
      break;
    default:
      write(std::uint8_t{}, [](std::uint64_t random) { return static_cast<std::uint8_t>(random); });
  }
  return bytes;
}

}  // namespace cohort::test
