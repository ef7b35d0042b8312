// SPDX-License-Identifier: BSD-3-Clause
//
// The same inputs give the same bits, element by element, whatever else is in the vector, wherever it is in memory,
// whichever operation reduces it, and whether ranks are threads or processes.
#include "backends/shm/collectives/tuning.h"
#include "group/arrangements.h"
#include "group/payload.h"

namespace cohort::test {
namespace {

constexpr auto types = std::to_array({DType::f16, DType::bf16, DType::f32, DType::f64, DType::complex64});

ReduceOp op_with_fractions(ReduceOp::Kind kind, int rank) {
  return kind == ReduceOp::Kind::premul_sum ? ReduceOp::premul_sum(1.0 / (rank + 3)) : ReduceOp(kind);
}

class SameBits : public OnEveryArrangement {
 protected:
  void SetUp() override {
    if (!is_order_known()) GTEST_SKIP() << "this backend combines in an order of its own (docs/backends.md)";
  }

  static constexpr auto kinds = std::to_array({ReduceOp::Kind::sum, ReduceOp::Kind::avg, ReduceOp::Kind::premul_sum});

  /// The reduction of the elements first, first + 1, ... of all ranks.
  static ByteVector expected(DType dtype, ReduceOp::Kind kind, std::size_t count, bool backwards = false) {
    std::vector<ByteVector> inputs;
    std::vector<const std::uint8_t*> sources;
    std::vector<double> factors;
    for (int i = 0; i < size(); ++i) {
      const int rank = backwards ? size() - 1 - i : i;
      inputs.push_back(values(dtype, rank, count));
      factors.push_back(op_with_fractions(kind, rank).factor());
    }
    sources.reserve(inputs.size());
    for (const auto& each : inputs) sources.push_back(each.data());
    return reference(dtype, kind, sources, factors, size(), count);
  }
  static ByteVector part(DType dtype, const ByteVector& whole, std::size_t first, std::size_t count) {
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(first * size_of(dtype));
    return {begin, begin + static_cast<std::ptrdiff_t>(count * size_of(dtype))};
  }
};

TEST_P(SameBits, InAVectorOrAlone) {
  const auto count = 9000 * index(size());
  for (const auto dtype : types) {
    const auto whole = expected(dtype, ReduceOp::Kind::sum, count);
    run([&](const ProcessGroupPtr& pg) {
      const auto check = [&](std::size_t first, std::size_t elements, Place place) {
        const Memory memory(*pg, place, values(dtype, pg->rank(), elements, first));
        pg->all_reduce(memory.buffer(dtype));
        EXPECT_TRUE(holds(memory, dtype, part(dtype, whole, first, elements)))
            << elements << " from " << first << " in " << to_string(place) << " memory";
      };
      for (const auto place : places()) {
        check(0, count, place);
        for (std::size_t i = 0; i < 64; ++i) check(scrambled(i) % count, 1, place);
        for (std::size_t i = 1; i < 24; ++i) {
          const auto first = scrambled(i) % count;
          check(first, std::min(count - first, scrambled(i * 100) % 16'000), place);
        }
      }
    });
  }
}

TEST_P(SameBits, WhicheverOperationReducesIt) {
  const auto n = static_cast<std::size_t>(size());
  for (const auto dtype : types) {
    for (const auto kind : kinds) {
      for (const std::size_t each : {3UL, 6000UL}) {
        const auto whole = expected(dtype, kind, each * n);
        run([&](const ProcessGroupPtr& pg) {
          const auto op = op_with_fractions(kind, pg->rank());
          const auto mine = values(dtype, pg->rank(), each * n);
          for (const auto place : places()) {
            const Memory coalesced(*pg, place, mine);
            pg->all_reduce_coalesced(BufferList{coalesced.buffer(dtype)}, {.op = op});
            EXPECT_TRUE(holds(coalesced, dtype, whole)) << "all_reduce_coalesced, " << to_string(place);

            const Memory queued(*pg, place, mine);
            pg->all_reduce(queued.buffer(dtype), {.op = op, .async_op = true}).wait();
            EXPECT_TRUE(holds(queued, dtype, whole)) << "asynchronous all_reduce, " << to_string(place);

            const int root = pg->size() - 1;
            const Memory reduced(*pg, place, mine);
            pg->reduce(reduced.buffer(dtype), {.root = root, .op = op});
            EXPECT_TRUE(holds(reduced, dtype, pg->rank() == root ? whole : mine)) << "reduce, " << to_string(place);

            const Memory input(*pg, place, mine);
            const Memory output(*pg, place, each * size_of(dtype));
            pg->reduce_scatter(output.buffer(dtype), input.buffer(dtype), {.op = op});
            EXPECT_TRUE(holds(output, dtype, part(dtype, whole, index(pg->rank()) * each, each)))
                << "reduce_scatter, " << to_string(place);
            EXPECT_TRUE(holds(input, dtype, mine)) << "reduce_scatter's input, " << to_string(place);
          }
        });
      }
    }
  }
}

TEST_P(SameBits, AndTheOrderWouldShow) {
  if (size() < 3) GTEST_SKIP() << "two numbers add up to the same either way";
  // Sums of f16 and bf16 are exact in f32 as long as the numbers have similar magnitudes.
  for (const auto dtype : {DType::f32, DType::f64, DType::complex64}) {
    EXPECT_FALSE(same_bits(dtype, expected(dtype, ReduceOp::Kind::sum, 20'000),
                           expected(dtype, ReduceOp::Kind::sum, 20'000, true)));
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, SameBits, every_arrangement(), arrangement_name);

/// gloo reduces and scatters in rank order as well: numbers for which the order and each rounding matter.
class ScatteredBits : public OnEveryArrangement {
 protected:
  void SetUp() override {
    const auto backend = backend_under_test();
    if (!backend.empty() && backend != "gloo") GTEST_SKIP() << "this backend combines in an order of its own";
  }
};

TEST_P(ScatteredBits, AreRoundedOnceWhateverTheReduction) {
  const auto contribution = [](DType dtype, int rank, std::size_t count) {
    ByteVector bytes(count * size_of(dtype));
    for (std::size_t i = 0; i < count; ++i) {
      const auto number = static_cast<float>(static_cast<int>(scrambled(i * 8 + index(rank)) % 4001) - 2000) / 512.0F;
      const std::uint16_t half = to_half(number, dtype == DType::f16 ? 10 : 7);
      dtype == DType::f32 ? std::memcpy(&bytes[i * 4], &number, 4) : std::memcpy(&bytes[i * 2], &half, 2);
    }
    return bytes;
  };
  for (const auto dtype : {DType::f16, DType::bf16, DType::f32}) {
    for (const auto kind : {ReduceOp::Kind::sum, ReduceOp::Kind::avg, ReduceOp::Kind::premul_sum}) {
      for (const std::size_t each : {2UL, 70'000UL}) {
        const auto all = each * index(size());
        run([&](const ProcessGroupPtr& pg) {
          std::vector<ByteVector> inputs;
          std::vector<const std::uint8_t*> sources;
          std::vector<double> factors;
          for (int rank = 0; rank < pg->size(); ++rank) inputs.push_back(contribution(dtype, rank, all));
          for (int rank = 0; rank < pg->size(); ++rank) {
            sources.push_back(inputs[index(rank)].data());
            factors.push_back(op_with_fractions(kind, rank).factor());
          }
          const auto whole = reference(dtype, kind, sources, factors, pg->size(), all);
          const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(index(pg->rank()) * each * size_of(dtype));
          const Memory input(*pg, Place::ordinary, inputs[index(pg->rank())]);
          const Memory output(*pg, Place::ordinary, each * size_of(dtype));
          pg->reduce_scatter(output.buffer(dtype), input.buffer(dtype), {.op = op_with_fractions(kind, pg->rank())});
          EXPECT_TRUE(
              holds(output, dtype, ByteVector(begin, begin + static_cast<std::ptrdiff_t>(each * size_of(dtype)))))
              << to_string(kind);
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, ScatteredBits, arrangements_of_several(), arrangement_name);

}  // namespace
}  // namespace cohort::test
