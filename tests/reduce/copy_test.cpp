// SPDX-License-Identifier: BSD-3-Clause
#include "reduce/copy.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "reduce/instruction_sets.h"

namespace cohort::test {
namespace {

void check(void (*copy)(void*, const void*, std::size_t)) {
  std::vector<std::uint8_t> from(70'000);
  std::iota(from.begin(), from.end(), std::uint8_t{1});
  for (const auto bytes : std::initializer_list<std::size_t>{
           0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 511, 512, 513, 640, 4096, 4097, 65'537}) {
    for (const auto from_offset : std::initializer_list<std::size_t>{0, 1, 48}) {
      for (const auto to_offset : std::initializer_list<std::size_t>{0, 1, 16, 63}) {
        std::vector<std::uint8_t> to(bytes + 128, 0);
        copy(to.data() + to_offset, from.data() + from_offset, bytes);
        std::vector<std::uint8_t> expected(to.size(), 0);
        std::copy_n(from.data() + from_offset, bytes, expected.data() + to_offset);
        ASSERT_EQ(to, expected) << bytes << " bytes from " << from_offset << " to " << to_offset;
      }
    }
  }
  copy(nullptr, nullptr, 0);
}

TEST(CopyTest, CopiesWhatItIsToldAndNoMore) {
  check(reduce::copy);
}

TEST(CopyTest, StreamingCopiesWhatItIsToldAndNoMore) {
  on_every_instruction_set([] { check(reduce::stream_copy); });
}

}  // namespace
}  // namespace cohort::test
