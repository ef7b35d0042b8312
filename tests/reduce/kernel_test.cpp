// SPDX-License-Identifier: BSD-3-Clause
#include "reduce/kernels.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <set>
#include <span>

#include "reduce/instruction_sets.h"
#include "reduce/reference.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using Kind = ReduceOp::Kind;
using reduce::find_kernel;
using reduce::find_streaming_kernel;
using reduce::Kernel;

constexpr auto all_kinds = std::to_array(
    {Kind::sum, Kind::avg, Kind::product, Kind::min, Kind::max, Kind::band, Kind::bor, Kind::bxor, Kind::premul_sum});

ReduceOp op_of(Kind kind) {
  return kind == Kind::premul_sum ? ReduceOp::premul_sum(1) : ReduceOp(kind);
}

/// Memory at a given offset from a cache line, between guard bytes that must not change.
class Memory {
 public:
  Memory(std::size_t bytes, std::size_t offset) : storage_(bytes + 3 * line, fence), bytes_(bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    begin_ = line + (line - address % line) % line + offset % line;
  }
  Memory(std::span<const std::uint8_t> bytes, std::size_t offset) : Memory(bytes.size(), offset) {
    std::copy(bytes.begin(), bytes.end(), data());
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory(Memory&&) = default;
  Memory& operator=(Memory&&) = default;
  ~Memory() = default;

  std::uint8_t* data() { return storage_.data() + begin_; }
  std::vector<std::uint8_t> bytes() { return {data(), data() + bytes_}; }
  bool fences_stand() const {
    const auto stands = [](std::uint8_t byte) { return byte == fence; };
    const auto begin = storage_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(storage_.begin(), begin, stands) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), storage_.end(), stands);
  }

 private:
  static constexpr std::size_t line = 64;
  static constexpr std::uint8_t fence = 0xA5;
  std::vector<std::uint8_t> storage_;
  std::size_t bytes_;
  std::size_t begin_ = 0;
};

class KernelTest : public testing::Test {
 protected:
  /// Mostly ordinary numbers, sometimes arbitrary bits: infinities, NaN, subnormals, extremes.
  std::vector<std::uint8_t> random_bytes(DType dtype, std::size_t elements) {
    std::vector<std::uint8_t> bytes(elements * size_of(dtype));
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random_());
    const auto tame = [&]<class T>(T (*number)(float)) {
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
        const T value = number(std::uniform_real_distribution<float>(-4, 4)(random_));
        if (random_() % 8 != 0) std::memcpy(bytes.data() + at, &value, sizeof(T));
      }
    };
    switch (dtype) {
      case DType::f16:
        tame(+[](float x) { return to_half(x, 10); });
        break;
      case DType::bf16:
        tame(+[](float x) { return to_half(x, 7); });
        break;
      case DType::f32:
      case DType::complex64:
        tame(+[](float x) { return x; });
        break;
      case DType::f64:
      case DType::complex128:
        tame(+[](float x) { return static_cast<double>(x) / 3; });
        break;
      case DType::boolean:
        for (auto& byte : bytes) byte = random_() % 2 == 0 ? 0 : byte;
        break;
      default:
        break;
    }
    return bytes;
  }

  struct Layout {
    const char* name = "";
    std::size_t offset = 0;        ///< source i is misaligned by i times this many bytes
    std::size_t fresh_offset = 0;  ///< misalignment of outputs that are not a source
    std::size_t fresh_outputs = 1;
    bool in_place = false;  ///< the middle source is also an output
    Kernel (*find)(DType, Kind) = find_kernel;
  };

  void check(DType dtype, Kind kind, std::size_t count, std::size_t elements, const Layout& layout) {
    std::vector<std::vector<std::uint8_t>> inputs;
    std::vector<const std::uint8_t*> input_data;
    std::vector<double> factors;
    for (std::size_t i = 0; i < count; ++i) {
      inputs.push_back(random_bytes(dtype, elements));
      factors.push_back(std::uniform_real_distribution<>(-2, 2)(random_));
    }
    for (const auto& input : inputs) input_data.push_back(input.data());
    const double divisor = static_cast<double>(count) + 0.1;
    const auto expected = with_one_nan(dtype, reference(dtype, kind, input_data, factors, divisor, elements));

    on_every_instruction_set([&] {
      std::vector<Memory> sources;
      std::vector<Memory> fresh;
      std::vector<const void*> source_data;
      std::vector<void*> output_data;
      for (std::size_t i = 0; i < count; ++i) sources.emplace_back(inputs[i], i * layout.offset);
      for (auto& source : sources) source_data.push_back(source.data());
      if (layout.in_place) output_data.push_back(sources[count / 2].data());
      for (std::size_t i = 0; i < layout.fresh_outputs; ++i) fresh.emplace_back(expected.size(), layout.fresh_offset);
      for (auto& output : fresh) output_data.push_back(output.data());

      const auto kernel = layout.find(dtype, kind);
      ASSERT_NE(kernel, nullptr);
      kernel({source_data.data(), kind == Kind::premul_sum ? factors.data() : nullptr, count},
             {output_data.data(), output_data.size()}, elements, divisor);

      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(sources[i].fences_stand());
        if (layout.in_place && i == count / 2) {
          EXPECT_EQ(with_one_nan(dtype, sources[i].bytes()), expected);
        } else {
          EXPECT_EQ(sources[i].bytes(), inputs[i]) << "source " << i << " was written to";
        }
      }
      for (auto& output : fresh) {
        EXPECT_TRUE(output.fences_stand());
        EXPECT_EQ(with_one_nan(dtype, output.bytes()), expected);
      }
    });
  }

  /// All ops on these types, with different numbers of sources and elements, in place and out of place, at all
  /// alignments.
  void check_all(std::initializer_list<DType> dtypes) {
    for (const auto dtype : dtypes) {
      const auto element = size_of(dtype);
      const std::array<Layout, 7> layouts = {{
          {.name = "aligned"},
          {.name = "in place", .fresh_outputs = 0, .in_place = true},
          {.name = "elements apart", .offset = element, .fresh_offset = 3 * element},
          {.name = "bytes apart", .offset = 1, .fresh_offset = 1},
          {.name = "in place, elements apart", .offset = element, .fresh_outputs = 0, .in_place = true},
          {.name = "streaming",
           .offset = element,
           .fresh_offset = element,
           .fresh_outputs = 2,
           .find = find_streaming_kernel},
          {.name = "streaming bytes apart", .fresh_offset = 3, .in_place = true, .find = find_streaming_kernel},
      }};
      for (const auto kind : all_kinds) {
        if (!is_reducible(dtype, op_of(kind))) continue;
        for (const auto count : std::initializer_list<std::size_t>{1, 2, 3, 5, 8}) {
          for (const auto elements :
               std::initializer_list<std::size_t>{0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 255, 1000, 4097}) {
            // Long vectors take long, so each is tested in one layout only.
            const auto& one = layouts[(count + elements + static_cast<std::size_t>(kind)) % layouts.size()];
            for (const auto& layout : elements < 255 ? std::span(layouts) : std::span(&one, 1)) {
              SCOPED_TRACE(testing::Message() << to_string(kind) << " of " << count << " times " << elements << " "
                                              << to_string(dtype) << ", " << layout.name);
              ASSERT_NO_FATAL_FAILURE(check(dtype, kind, count, elements, layout));
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }

  std::mt19937 random_{20240229};
};

/// Returns one result per element of `sources[0]`, computed with the current instruction set.
template <class T>
std::vector<T> reduced(Kind kind, const std::vector<std::vector<T>>& sources, const std::vector<double>& factors = {},
                       double divisor = 1) {
  std::vector<T> result(sources[0].size());
  std::vector<const void*> data;
  for (const auto& source : sources) data.push_back(source.data());
  void* const output = result.data();
  find_kernel(dtype_of<T>, kind)({data.data(), factors.data(), data.size()}, {&output, 1}, result.size(), divisor);
  return result;
}

std::vector<Float16> f16s(std::initializer_list<float> values) {
  std::vector<Float16> result;
  for (const auto value : values) result.push_back({to_half(value, 10)});
  return result;
}
std::vector<BFloat16> bf16s(std::initializer_list<float> values) {
  std::vector<BFloat16> result;
  for (const auto value : values) result.push_back({to_half(value, 7)});
  return result;
}
template <class Half>
std::vector<int> bits_of(const std::vector<Half>& halves) {
  std::vector<int> result;
  for (const auto half : halves) result.push_back(half.bits);
  return result;
}

TEST_F(KernelTest, FloatsHaveTheBitsOfThePlainLoop) {
  check_all({DType::f32, DType::f64});
}

TEST_F(KernelTest, HalvesHaveTheBitsOfThePlainLoop) {
  check_all({DType::f16, DType::bf16});
}

TEST_F(KernelTest, IntegersHaveTheBitsOfThePlainLoop) {
  check_all({DType::i8, DType::i16, DType::i32, DType::i64, DType::u8, DType::u16, DType::u32, DType::u64});
}

TEST_F(KernelTest, BoolsHaveTheBitsOfThePlainLoop) {
  check_all({DType::boolean});
}

TEST_F(KernelTest, ComplexNumbersHaveTheBitsOfThePlainLoop) {
  check_all({DType::complex64, DType::complex128});
}

TEST_F(KernelTest, EachInstructionSetHasItsOwnKernels) {
  std::set<Kernel> kernels;
  on_every_instruction_set([&] { kernels.insert(find_kernel(DType::f32, Kind::sum)); });
  EXPECT_EQ(kernels.size(), static_cast<std::size_t>(reduce::best_instruction_set()) + 1);
}

TEST_F(KernelTest, ThereIsOneForEverythingReducible) {
  for (const auto dtype :
       {DType::f16, DType::bf16, DType::f32, DType::f64, DType::i8, DType::u8, DType::i16, DType::i32, DType::i64,
        DType::boolean, DType::complex64, DType::complex128, DType::u16, DType::u32, DType::u64}) {
    for (const auto kind : all_kinds) {
      EXPECT_EQ(find_kernel(dtype, kind) != nullptr, is_reducible(dtype, op_of(kind)))
          << to_string(dtype) << " " << to_string(kind);
    }
    EXPECT_NE(find_streaming_kernel(dtype, Kind::sum), nullptr);
  }
  EXPECT_NE(find_streaming_kernel(DType::f32, Kind::sum), find_kernel(DType::f32, Kind::sum));
  EXPECT_EQ(find_streaming_kernel(DType::f32, Kind::max), find_kernel(DType::f32, Kind::max));
}

TEST_F(KernelTest, NaNPropagatesThroughMinAndMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> sources = {{nan, 1, 1, 5}, {0, nan, 2, 5}, {0, 3, nan, 5}};
  on_every_instruction_set([&] {
    for (const auto kind : {Kind::min, Kind::max}) {
      const auto result = reduced(kind, sources);
      EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1]) && std::isnan(result[2]));
      EXPECT_EQ(result[3], 5);
    }
  });
}

TEST_F(KernelTest, OfEqualZerosTheFirstIsKept) {
  on_every_instruction_set([&] {
    for (const auto kind : {Kind::min, Kind::max}) {
      const auto result = reduced<double>(kind, {{0.0, -0.0}, {-0.0, 0.0}});
      EXPECT_FALSE(std::signbit(result[0]));
      EXPECT_TRUE(std::signbit(result[1]));
    }
  });
}

TEST_F(KernelTest, HalvesAreRoundedOnceAtTheEnd) {
  on_every_instruction_set([&] {
    // If every step were rounded, each addition of 1 would be a tie and round down again.
    EXPECT_EQ(bits_of(reduced<Float16>(Kind::sum, {f16s({2048}), f16s({1}), f16s({1})})), bits_of(f16s({2050})));
    EXPECT_EQ(bits_of(reduced<BFloat16>(Kind::sum, {bf16s({256}), bf16s({1}), bf16s({1})})), bits_of(bf16s({258})));
    // The intermediate result would overflow in f16, but the final one does not.
    EXPECT_EQ(bits_of(reduced<Float16>(Kind::sum, {f16s({65504}), f16s({65504}), f16s({-65504})})),
              bits_of(f16s({65504})));
  });
}

TEST_F(KernelTest, HalvesRoundToNearestEven) {
  on_every_instruction_set([&] {
    // In f16, 2048 and 2050 are neighbours, 65504 is the largest number, 65520 is half a step beyond it, and 2^-24 is
    // the smallest number.
    EXPECT_EQ(bits_of(reduced<Float16>(
                  Kind::sum, {f16s({2048, 2050, 65504, 65504, 0x1p-24F}), f16s({1, 1, 16, 15.99F, -0x1p-24F})})),
              (std::vector<int>{0x6800, 0x6802, 0x7C00, 0x7BFF, 0}));
    EXPECT_EQ(bits_of(reduced<Float16>(Kind::avg, {f16s({0x1p-24F, 0x3p-24F, -0x1p-24F})}, {}, 2)),
              (std::vector<int>{0, 2, 0x8000}));
    // In bf16, 256 and 258 are neighbours.
    EXPECT_EQ(bits_of(reduced<BFloat16>(Kind::sum, {bf16s({256, 258, -256}), bf16s({1, 1, -1})})),
              bits_of(bf16s({256, 260, -256})));
    const std::vector<BFloat16> largest = {{0x7F7F}};
    EXPECT_EQ(bits_of(reduced<BFloat16>(Kind::sum, {largest, largest})), (std::vector<int>{0x7F80}));
  });
}

TEST_F(KernelTest, EveryHalfIsReadAndRoundedRight) {
  std::vector<std::uint16_t> all(1 << 16);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  const std::vector<const std::uint8_t*> sources = {reinterpret_cast<const std::uint8_t*>(all.data())};
  for (const auto dtype : {DType::f16, DType::bf16}) {
    // These factors spread the results from zero to infinity, including ties.
    for (const double factor : {1.0, 0.5, 0.25, 0.75, 1.0 / 1024, 1 / 3.0, 1e-3, 1e-7, 1.5, 100.0, -7e4}) {
      const auto expected = with_one_nan(dtype, reference(dtype, Kind::premul_sum, sources, {factor}, 1, all.size()));
      on_every_instruction_set([&] {
        std::vector<std::uint8_t> result(expected.size());
        const void* const source = all.data();
        void* const output = result.data();
        find_kernel(dtype, Kind::premul_sum)({&source, &factor, 1}, {&output, 1}, all.size(), 1);
        EXPECT_EQ(with_one_nan(dtype, result), expected) << to_string(dtype) << " times " << factor;
      });
    }
  }
}

TEST_F(KernelTest, ANaNStaysOneThroughRounding) {
  on_every_instruction_set([&] {
    // A NaN whose payload is only in the bits that are cut off cannot come from memory, but one with only the sign and
    // the lowest bit can.
    const std::vector<BFloat16> nans = {{0x7F81}, {0xFFFF}, {0x7FFF}, {0xFF81}};
    for (const auto bits : bits_of(reduced<BFloat16>(Kind::sum, {nans, nans}))) EXPECT_GT(bits & 0x7FFF, 0x7F80);
    const std::vector<Float16> f16_nans = {{0x7C01}, {0xFFFF}, {0x7FFF}, {0xFC01}};
    for (const auto bits : bits_of(reduced<Float16>(Kind::sum, {f16_nans, f16_nans}))) EXPECT_GT(bits & 0x7FFF, 0x7C00);
  });
}

TEST_F(KernelTest, IntegersWrapAround) {
  on_every_instruction_set([&] {
    EXPECT_EQ(reduced<std::int8_t>(Kind::sum, {{127, -128}, {1, -1}}), (std::vector<std::int8_t>{-128, 127}));
    EXPECT_EQ(reduced<std::int8_t>(Kind::product, {{-128, 100}, {-1, 3}}), (std::vector<std::int8_t>{-128, 44}));
    EXPECT_EQ(reduced<std::uint8_t>(Kind::product, {{16, 255}, {16, 255}}), (std::vector<std::uint8_t>{0, 1}));
    EXPECT_EQ(reduced<std::int16_t>(Kind::product, {{-1, 256}, {-32768, 256}}), (std::vector<std::int16_t>{-32768, 0}));
    const auto least = std::numeric_limits<std::int64_t>::min();
    EXPECT_EQ(reduced<std::int64_t>(Kind::sum, {{least}, {-1}})[0], std::numeric_limits<std::int64_t>::max());
    EXPECT_EQ(reduced<std::int64_t>(Kind::product, {{least, 1LL << 33}, {-1, (1LL << 33) + 5}}),
              (std::vector<std::int64_t>{least, 5LL << 33}));
    EXPECT_EQ(reduced<std::int64_t>(Kind::min, {{least}, {1}})[0], least);
  });
}

TEST_F(KernelTest, ShortOnesHaveTheSameBits) {
  constexpr std::size_t sources = 5;
  std::uint64_t state = 1;
  for (const auto dtype : {DType::f32, DType::f64, DType::i32, DType::u32, DType::i64, DType::u64}) {
    const auto short_kernel = reduce::find_short_kernel(dtype, Kind::sum);
    ASSERT_NE(short_kernel, nullptr) << to_string(dtype);
    const auto most = reduce::short_bytes / size_of(dtype);
    for (std::size_t elements = 0; elements <= most; ++elements) {
      for (std::size_t count = 1; count <= sources; ++count) {
        // Arbitrary bits, except that floats are ordinary numbers: which NaN results is not defined.
        std::array<std::array<std::byte, reduce::short_bytes + 1>, sources> memory{};
        std::array<const void*, sources> data{};
        for (std::size_t i = 0; i < count; ++i) {
          auto* const at = memory[i].data() + 1;  // nothing needs to be aligned
          data[i] = at;
          for (std::size_t e = 0; e < elements; ++e) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            const auto number = static_cast<double>(static_cast<std::int64_t>(state >> 11U)) / 3;
            const auto narrow = static_cast<float>(number);
            const void* const from = dtype == DType::f64   ? static_cast<const void*>(&number)
                                     : dtype == DType::f32 ? static_cast<const void*>(&narrow)
                                                           : static_cast<const void*>(&state);
            std::memcpy(at + e * size_of(dtype), from, size_of(dtype));
          }
        }
        std::array<std::byte, reduce::short_bytes> one{};
        std::array<std::byte, reduce::short_bytes> other{};
        std::array<std::byte, reduce::short_bytes> again{};
        const reduce::Sources from{.data = data.data(), .count = count};
        const std::array<void*, 2> both{one.data(), again.data()};
        void* const expected = other.data();
        short_kernel(from, {.data = both.data(), .count = 2}, elements, 1);
        if (elements > 0) reduce::find_kernel(dtype, Kind::sum)(from, {.data = &expected, .count = 1}, elements, 1);
        EXPECT_EQ(one, other) << to_string(dtype) << ", " << elements << " of " << count << " ranks";
        EXPECT_EQ(again, other);
      }
    }
  }
  EXPECT_EQ(reduce::find_short_kernel(DType::f32, Kind::max), nullptr);
  EXPECT_EQ(reduce::find_short_kernel(DType::bf16, Kind::sum), nullptr);
  EXPECT_EQ(reduce::find_kernel_for(DType::f32, Kind::sum, reduce::short_bytes + 4),
            reduce::find_kernel(DType::f32, Kind::sum));
}

TEST_F(KernelTest, AnyByteButZeroIsTrue) {
  const std::vector<std::uint8_t> a = {0, 2, 255, 0, 2};
  const std::vector<std::uint8_t> b = {0, 1, 0, 255, 128};
  const auto of = [&](Kind kind) {
    std::vector<std::uint8_t> result(a.size(), 77);
    const std::array<const void*, 2> sources = {a.data(), b.data()};
    void* const output = result.data();
    find_kernel(DType::boolean, kind)({sources.data(), nullptr, 2}, {&output, 1}, a.size(), 1);
    return result;
  };
  on_every_instruction_set([&] {
    for (const auto kind : {Kind::sum, Kind::max, Kind::bor})
      EXPECT_EQ(of(kind), (std::vector<std::uint8_t>{0, 1, 1, 1, 1})) << to_string(kind);
    for (const auto kind : {Kind::product, Kind::min, Kind::band})
      EXPECT_EQ(of(kind), (std::vector<std::uint8_t>{0, 1, 0, 0, 1})) << to_string(kind);
    EXPECT_EQ(of(Kind::bxor), (std::vector<std::uint8_t>{0, 0, 1, 1, 0}));
  });
}

TEST_F(KernelTest, EachSourceHasItsOwnFactor) {
  on_every_instruction_set([&] {
    EXPECT_EQ(reduced<float>(Kind::premul_sum, {{1, 2}, {10, 20}}, {0.5, -1}), (std::vector<float>{-9.5F, -19}));
    EXPECT_EQ(reduced<double>(Kind::premul_sum, {{3}}, {0.1})[0], 3 * 0.1);
  });
}

TEST_F(KernelTest, ProductsAreRoundedBeforeTheyAreAdded) {
  // (1 + 2^-12)^2 needs 25 bits. Rounding to 24 bits drops the last one; a fused multiply-add would keep it.
  const float x = 1 + 0x1p-12F;
  on_every_instruction_set([&] {
    EXPECT_EQ(reduced<float>(Kind::premul_sum, {{-1 - 0x1p-11F}, {x}}, {1.0, static_cast<double>(x)})[0], 0.0F);
  });
}

}  // namespace
}  // namespace cohort::test
