// SPDX-License-Identifier: BSD-3-Clause
//
// Compares all-reduce bit by bit with a serial reference that combines the ranks in order.
#include <numeric>
#include <set>

#include "backends/shm/collectives/tuning.h"
#include "group/arrangements.h"
#include "group/payload.h"

namespace cohort::test {
namespace {

using Kind = ReduceOp::Kind;

constexpr auto all_kinds = std::to_array(
    {Kind::sum, Kind::avg, Kind::product, Kind::min, Kind::max, Kind::band, Kind::bor, Kind::bxor, Kind::premul_sum});

double factor_of(int rank) {
  return is_order_known() ? 0.3 + 0.7 * rank : 0.5 * (1 + rank % 3);
}
ReduceOp op_of(Kind kind, int rank) {
  return kind == Kind::premul_sum ? ReduceOp::premul_sum(factor_of(rank)) : ReduceOp(kind);
}

struct Case {
  DType dtype = DType::f32;
  Kind kind = Kind::sum;
  std::size_t count = 0;
  std::vector<ByteVector> inputs{};
  ByteVector expected{};

  Case(DType type, Kind reduce, std::size_t elements, int ranks) : dtype(type), kind(reduce), count(elements) {
    std::vector<const std::uint8_t*> sources;
    std::vector<double> factors;
    for (int rank = 0; rank < ranks; ++rank) {
      inputs.push_back(values(dtype, rank, count));
      factors.push_back(factor_of(rank));
    }
    for (const auto& each : inputs) sources.push_back(each.data());
    expected = reference(dtype, kind, sources, factors, ranks, count);
  }

  void check(ProcessGroup& group, Place place, std::size_t offset = 0) const {
    const Memory memory(group, place, inputs[index(group.rank())], offset);
    group.all_reduce(memory.buffer(dtype), {.op = op_of(kind, group.rank())});
    EXPECT_TRUE(holds(memory, dtype, expected))
        << to_string(dtype) << " " << to_string(kind) << " x " << count << ", " << to_string(place) << " + " << offset;
  }
};

class AllReduce : public OnEveryArrangement {};

TEST_P(AllReduce, EveryTypeWithEveryOpItAllows) {
  std::vector<Case> cases;
  for (const auto dtype : all_dtypes) {
    for (const auto kind : all_kinds) {
      if (!is_reducible(dtype, op_of(kind, 0))) continue;
      for (const std::size_t count : {std::size_t{37}, 36'000 / size_of(dtype) + 3}) {
        cases.emplace_back(dtype, kind, count, size());
      }
    }
  }
  run([&](const ProcessGroupPtr& pg) {
    for (const auto& each : cases) {
      for (const auto place : places()) each.check(*pg, place);
    }
  });
}

/// The sizes in bytes at which another algorithm is used or one more chunk is needed; all are multiples of 16.
std::set<std::size_t> edges(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::set<std::size_t> all{0, 16, 32, 64, shm::post_bytes};
  std::size_t small = shm::post_bytes;
  while (!shm::is_small_reduction(small, ranks, true)) small -= 16;
  all.insert(small);
  const auto least_chunk = shm::reduce_chunk(1, ranks);
  for (const std::size_t chunks : {1UL, 2UL, 3UL}) all.insert(chunks * least_chunk);
  all.insert(64 * n);  // a cache line for each rank
  all.insert(4096 * n + 64);
  return all;
}

TEST_P(AllReduce, SizesAroundEveryEdge) {
  std::vector<Case> cases;
  for (const auto dtype : {DType::u8, DType::f32, DType::complex128}) {
    for (const auto bytes : edges(size())) {
      const auto count = bytes / size_of(dtype);
      if (count > 0) cases.emplace_back(dtype, Kind::sum, count - 1, size());
      cases.emplace_back(dtype, Kind::sum, count, size());
      cases.emplace_back(dtype, Kind::sum, count + 1, size());
    }
  }
  run([&](const ProcessGroupPtr& pg) {
    for (const auto& each : cases) {
      for (const auto place : places()) each.check(*pg, place);
    }
  });
}

TEST_P(AllReduce, ManyFullChunksAndARaggedEnd) {
  const auto full = shm::reduce_chunk(std::size_t{1} << 30U, size());
  std::vector<Case> cases;
  cases.emplace_back(DType::f32, Kind::sum, 5 * full / 4 + 4099, size());
  cases.emplace_back(DType::i8, Kind::bxor, 4 * full + 1, size());
  cases.emplace_back(DType::f64, Kind::premul_sum, 4 * full / 8 - 1, size());
  run([&](const ProcessGroupPtr& pg) {
    for (const auto& each : cases) {
      for (const auto place : places()) each.check(*pg, place, each.dtype == DType::f32 ? 4 : 0);
    }
  });
}

TEST_P(AllReduce, UnalignedMemory) {
  std::vector<Case> cases;
  for (const auto dtype : all_dtypes) {
    if (!is_reducible(dtype, ReduceOp::sum())) continue;
    for (const std::size_t bytes : {48UL, 40'000UL})
      cases.emplace_back(dtype, Kind::sum, bytes / size_of(dtype), size());
  }
  run([&](const ProcessGroupPtr& pg) {
    for (const auto& each : cases) {
      for (const auto place : places()) {
        each.check(*pg, place, size_of(each.dtype));
        // Misaligned by single bytes, which no allocator would do, and differently on each rank.
        each.check(*pg, place, 1 + index(pg->rank()));
      }
    }
  });
}

TEST_P(AllReduce, OfOnesIsTheNumberOfRanks) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = pg->size();
    const auto reduced = [&](double value, ReduceOp op) {
      std::vector<double> x(10, value);
      pg->all_reduce(x, {.op = op});
      EXPECT_EQ(x, std::vector<double>(10, x[0]));
      return x[0];
    };
    double factorial = 1;
    for (int i = 2; i <= n; ++i) factorial *= i;
    EXPECT_EQ(reduced(1, ReduceOp::sum()), n);
    EXPECT_EQ(reduced(pg->rank() + 1, ReduceOp::product()), factorial);
    EXPECT_EQ(reduced(pg->rank() + 1, ReduceOp::min()), 1);
    EXPECT_EQ(reduced(pg->rank() + 1, ReduceOp::max()), n);
    EXPECT_EQ(reduced(pg->rank(), ReduceOp::avg()), (n - 1) / 2.0);
    EXPECT_EQ(reduced(3, ReduceOp::premul_sum(2)), 6.0 * n);
    const float half = 0.5;
    EXPECT_EQ(reduced(4, ReduceOp::premul_sum(ConstBuffer(std::span(&half, 1)))), 2.0 * n);
  });
}

TEST_P(AllReduce, BoolsStayZeroOrOne) {
  run([](const ProcessGroupPtr& pg) {
    // Only the last rank has a true value, and it is not 1.
    const bool is_last = pg->rank() == pg->size() - 1;
    for (const std::size_t count : {5UL, 40'000UL}) {
      for (const auto op : {ReduceOp::sum(), ReduceOp::max(), ReduceOp::bor()}) {
        ByteVector bytes(count, is_last ? 255 : 0);
        pg->all_reduce(Buffer(bytes.data(), DType::boolean, {static_cast<std::int64_t>(count)}), {.op = op});
        EXPECT_EQ(bytes, ByteVector(count, 1));
      }
      for (const auto op : {ReduceOp::product(), ReduceOp::min(), ReduceOp::band(), ReduceOp::sum()}) {
        ByteVector bytes(count, 2);
        pg->all_reduce(Buffer(bytes.data(), DType::boolean, {static_cast<std::int64_t>(count)}), {.op = op});
        EXPECT_EQ(bytes, ByteVector(count, 1));
      }
    }
  });
}

TEST_P(AllReduce, ComplexNumbersArePairsOfReals) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = static_cast<float>(pg->size());
    std::vector<std::complex<float>> x(4, {1, static_cast<float>(pg->rank())});
    pg->all_reduce(x);
    EXPECT_EQ(x, std::vector<std::complex<float>>(4, {n, n * (n - 1) / 2}));
    std::vector<std::complex<double>> y(4, {2, -2});
    pg->all_reduce(y, {.op = ReduceOp::avg()});
    EXPECT_EQ(y, std::vector<std::complex<double>>(4, {2, -2}));
  });
}

TEST_P(AllReduce, NaNAndInfinityPropagate) {
  run([](const ProcessGroupPtr& pg) {
    constexpr auto inf = std::numeric_limits<float>::infinity();
    constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
    for (const std::size_t count : {4UL, 20'000UL}) {
      for (const auto op : {ReduceOp::sum(), ReduceOp::product(), ReduceOp::min(), ReduceOp::max(), ReduceOp::avg()}) {
        std::vector<float> x(count, pg->rank() == pg->size() / 2 ? nan : 1.0F);
        pg->all_reduce(x, {.op = op});
        EXPECT_TRUE(std::all_of(x.begin(), x.end(), [](float each) { return std::isnan(each); })) << to_string(op);
      }
      std::vector<float> x(count, pg->rank() == 0 ? inf : 1.0F);
      pg->all_reduce(x);
      EXPECT_EQ(x, std::vector<float>(count, inf));
      if (pg->size() == 1) continue;
      x.assign(count, pg->rank() == 0 ? inf : -inf);
      pg->all_reduce(x);
      EXPECT_TRUE(std::isnan(x[0]));
    }
  });
}

TEST_P(AllReduce, RefusesWhatTheTypeDoesNotAllow) {
  run([](const ProcessGroupPtr& pg) {
    for (const auto dtype : all_dtypes) {
      for (const auto kind : all_kinds) {
        if (is_reducible(dtype, op_of(kind, 0))) continue;
        const Memory memory(*pg, Place::ordinary, values(dtype, pg->rank(), 6));
        const auto before = memory.bytes();
        const auto op = op_of(kind, pg->rank());
        expect_refused<TypeError>(*pg, std::string(to_string(dtype)),
                                  [&] { pg->all_reduce(memory.buffer(dtype), {.op = op}); });
        expect_refused<TypeError>(*pg, std::string(to_string(dtype)), [&] {
          pg->all_reduce(BufferList{memory.buffer(dtype)}, {.op = op, .async_op = true});
        });
        expect_refused<TypeError>(*pg, std::string(to_string(kind)),
                                  [&] { pg->all_reduce_coalesced(BufferList{memory.buffer(dtype)}, {.op = op}); });
        EXPECT_EQ(memory.bytes(), before);
      }
    }
    expect_works(*pg);
  });
}

TEST(AllReduceTypes, AverageBitwiseAndComplexRules) {
  with_threads(2, [](const ProcessGroupPtr& pg) {
    std::vector<std::int32_t> whole(3, 1);
    std::vector<float> real(3, 1);
    std::vector<std::complex<float>> complex(3);
    expect_refused<TypeError>(*pg, "avg", [&] { pg->all_reduce(whole, {.op = ReduceOp::avg()}); });
    expect_refused<TypeError>(*pg, "premul_sum", [&] { pg->all_reduce(whole, {.op = ReduceOp::premul_sum(2)}); });
    for (const auto op : {ReduceOp::band(), ReduceOp::bor(), ReduceOp::bxor()}) {
      expect_refused<TypeError>(*pg, "f32", [&] { pg->all_reduce(real, {.op = op}); });
      expect_refused<TypeError>(*pg, "complex64", [&] { pg->all_reduce(complex, {.op = op}); });
    }
    for (const auto op : {ReduceOp::min(), ReduceOp::max(), ReduceOp::product()}) {
      expect_refused<TypeError>(*pg, "complex64", [&] { pg->all_reduce(complex, {.op = op}); });
    }
    std::vector<std::int32_t> bits(3, pg->rank() == 0 ? 0b1100 : 0b1010);
    const auto reduced = [&](ReduceOp op) {
      auto copy = bits;
      pg->all_reduce(copy, {.op = op});
      return copy;
    };
    EXPECT_EQ(reduced(ReduceOp::band()), std::vector<std::int32_t>(3, 0b1000));
    EXPECT_EQ(reduced(ReduceOp::bor()), std::vector<std::int32_t>(3, 0b1110));
    EXPECT_EQ(reduced(ReduceOp::bxor()), std::vector<std::int32_t>(3, 0b0110));
  });
}

TEST_P(AllReduce, ListReducesAcrossAllItsBuffers) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = static_cast<float>(pg->size());
    for (const std::size_t count : {1UL, 3UL, 30'000UL}) {
      std::vector<float> a(count, 1);
      std::vector<float> b(count, 10);
      const auto work = pg->all_reduce(BufferList{a, b});
      EXPECT_EQ(a, std::vector<float>(count, 11 * n));  // 22 for two ranks
      EXPECT_EQ(b, a);
      EXPECT_EQ(work.result().size(), 2U);

      std::vector<std::int64_t> c(count, pg->rank());
      std::vector<std::int64_t> d(count, -1 - pg->rank());
      std::vector<std::int64_t> e(count, 0);
      pg->all_reduce(BufferList{c, d, e}, {.op = ReduceOp::min()});
      EXPECT_EQ(c, std::vector<std::int64_t>(count, -pg->size()));
      EXPECT_TRUE(c == d && d == e);
    }
  });
}

TEST(AllReduceLists, OfHalvesAreRoundedOncePerRankAndOnceAtTheEnd) {
  with_threads(2, [](const ProcessGroupPtr& pg) {
    // In f16, 2048 + 1 is 2048, and adding another 1 gives 2048 again.
    std::vector<Float16> a{{to_half(pg->rank() == 0 ? 2048 : 1, 10)}};
    std::vector<Float16> b{{to_half(pg->rank() == 0 ? 1 : 0, 10)}};
    pg->all_reduce(BufferList{a, b});
    EXPECT_EQ(from_half(a[0].bits, 10), 2048);
    EXPECT_EQ(from_half(b[0].bits, 10), 2048);
  });
}

TEST_P(AllReduce, ListRefusesWhatItCannotMean) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<float> a(3);
    std::vector<float> b(3);
    std::vector<float> longer(4);
    std::vector<double> other(3);
    for (const auto op : {ReduceOp::avg(), ReduceOp::premul_sum(2)}) {
      expect_refused<ValueError>(*pg, "list", [&] { pg->all_reduce(BufferList{a, b}, {.op = op}); });
    }
    expect_refused<ValueError>(*pg, "empty", [&] { pg->all_reduce(BufferList{}); });
    expect_refused<ValueError>(*pg, "4 elements, not 3", [&] { pg->all_reduce(BufferList{a, longer}); });
    expect_refused<TypeError>(*pg, "f64", [&] { pg->all_reduce(BufferList{a, other}); });
    std::vector<float> alone(3, 4);
    pg->all_reduce(BufferList{alone}, {.op = ReduceOp::avg()});  // for one buffer it is the ordinary average
    EXPECT_EQ(alone, std::vector<float>(3, 4));
  });
}

TEST_P(AllReduce, CoalescedKeepsShapesApart) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = pg->size();
    std::vector<std::vector<std::int32_t>> each;
    for (const std::size_t count : {1UL, 0UL, 7UL, 50'000UL, 2048UL}) each.emplace_back(count, pg->rank() + 1);
    std::vector<std::int32_t> matrix(6, 2);
    const Memory shared(*pg, Place::group, 40'000);
    const std::span in_group(reinterpret_cast<std::int32_t*>(shared.data()), 10'000);
    std::fill(in_group.begin(), in_group.end(), pg->rank());

    BufferList list{each[0], each[1], each[2], Buffer(matrix.data(), DType::i32, {2, 3}), each[3], each[4], in_group};
    const auto before = pg->sequence_number();
    const auto work = pg->all_reduce_coalesced(list);
    EXPECT_EQ(pg->sequence_number(), before + 1);
    EXPECT_EQ(work.result().size(), list.size());
    for (const auto& x : each) EXPECT_EQ(x, std::vector<std::int32_t>(x.size(), n * (n + 1) / 2));
    EXPECT_EQ(matrix, std::vector<std::int32_t>(6, 2 * n));
    EXPECT_TRUE(std::all_of(in_group.begin(), in_group.end(), [&](auto x) { return x == n * (n - 1) / 2; }));

    std::vector<float> real(2);
    expect_refused<ValueError>(*pg, "empty", [&] { pg->all_reduce_coalesced(BufferList{}); });
    expect_refused<TypeError>(*pg, "f32", [&] { pg->all_reduce_coalesced(BufferList{matrix, real}); });
    expect_works(*pg);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, AllReduce, every_arrangement(), arrangement_name);

}  // namespace
}  // namespace cohort::test
