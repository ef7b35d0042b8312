// SPDX-License-Identifier: BSD-3-Clause
#include <numeric>

#include "group/arrangements.h"
#include "group/payload.h"

namespace cohort::test {
namespace {

/// Element i of the data that `from` sends to `to`.
std::int64_t item(int from, int to, std::size_t i) {
  return static_cast<std::int64_t>(i) * 10'000 + std::int64_t{from} * 100 + to;
}

class AllToAll : public OnEveryArrangement {};

TEST_P(AllToAll, EqualBlocks) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = index(pg->size());
    for (const auto place : places()) {
      for (const auto dtype : all_dtypes) {
        for (const std::size_t count : {0UL, 1UL, 30UL, 17'000 / size_of(dtype)}) {
          const auto block = count * size_of(dtype);
          // Block r holds the values of the pair (this rank, r).
          ByteVector mine;
          ByteVector expected;
          for (int r = 0; r < pg->size(); ++r) {
            const auto out = values(dtype, pg->rank() * 10 + r, count);
            const auto in = values(dtype, r * 10 + pg->rank(), count);
            mine.insert(mine.end(), out.begin(), out.end());
            expected.insert(expected.end(), in.begin(), in.end());
          }
          const Memory input(*pg, place, mine, 1);
          const Memory output(*pg, place, n * block);
          pg->all_to_all(output.buffer(dtype), input.buffer(dtype));
          EXPECT_TRUE(holds(output, dtype, expected)) << count << ", " << to_string(place);
          EXPECT_TRUE(holds(input, dtype, mine));
        }
      }
    }
  });
}

/// How many rows `from` sends to `to`: from none to many, and in some cases none at all.
using Rows = std::function<std::size_t(int from, int to)>;

void check_uneven(ProcessGroup& pg, Place place, std::size_t columns, const Rows& rows) {
  const int rank = pg.rank();
  std::vector<std::int64_t> in_splits;
  std::vector<std::int64_t> out_splits;
  std::vector<std::int64_t> mine;
  std::vector<std::int64_t> expected;
  for (int r = 0; r < pg.size(); ++r) {
    in_splits.push_back(static_cast<std::int64_t>(rows(rank, r)));
    out_splits.push_back(static_cast<std::int64_t>(rows(r, rank)));
    for (std::size_t i = 0; i < rows(rank, r) * columns; ++i) mine.push_back(item(rank, r, i));
    for (std::size_t i = 0; i < rows(r, rank) * columns; ++i) expected.push_back(item(r, rank, i));
  }
  const Memory input(pg, place, mine.size() * 8);
  const Memory output(pg, place, expected.size() * 8);
  if (!mine.empty()) std::memcpy(input.data(), mine.data(), mine.size() * 8);
  const auto shape = [&](const std::vector<std::int64_t>& splits) {
    return Dims{std::accumulate(splits.begin(), splits.end(), std::int64_t{0}), static_cast<std::int64_t>(columns)};
  };
  pg.all_to_all(Buffer(output.data(), DType::i64, shape(out_splits)),
                ConstBuffer(input.data(), DType::i64, shape(in_splits)),
                {.output_splits = out_splits, .input_splits = in_splits});
  EXPECT_TRUE(expected.empty() || std::memcmp(output.data(), expected.data(), expected.size() * 8) == 0)
      << to_string(place);
  EXPECT_TRUE(output.fences_stand());
}

TEST_P(AllToAll, UnevenBlocksSomeOfThemEmpty) {
  run([](const ProcessGroupPtr& pg) {
    for (const auto place : places()) {
      for (const std::size_t columns : {1UL, 3UL, 500UL}) {
        check_uneven(*pg, place, columns, [](int from, int to) { return index(from * 2 + to); });
        check_uneven(*pg, place, columns, [](int from, int to) { return index((from + to) % 2 * 40); });
        check_uneven(*pg, place, columns, [](int from, int /*to*/) { return from == 0 ? 7UL : 0UL; });
        check_uneven(*pg, place, columns, [](int /*from*/, int to) { return to == 0 ? 7UL : 0UL; });
        check_uneven(*pg, place, columns, [](int /*from*/, int /*to*/) { return 0UL; });
        check_uneven(*pg, place, columns, [&](int from, int to) { return from == to ? 90UL : 0UL; });
      }
    }
  });
}

TEST_P(AllToAll, SomeRanksHaveLittleAndOthersMuch) {
  run([](const ProcessGroupPtr& pg) {
    // On shm, pieces that are small go with the posts, and no rank knows whether those of the others are.
    for (const auto place : places()) {
      check_uneven(*pg, place, 4, [](int from, int /*to*/) { return from % 2 == 0 ? 3UL : 2'000UL; });
      check_uneven(*pg, place, 4, [](int from, int to) { return from == to ? 5'000UL : index(from + 1); });
      check_uneven(*pg, place, 1, [](int from, int to) { return from == 0 && to == 1 ? 40'000UL : 1UL; });
    }
  });
}

TEST_P(AllToAll, OneSplitListEmptyMeansEqualBlocksThere) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = index(pg->size());
    const std::vector<std::int64_t> twos(n, 2);
    std::vector<int> input(2 * n, pg->rank());
    std::vector<int> output(2 * n, -1);
    pg->all_to_all(output, input, {.input_splits = twos});
    EXPECT_EQ(output.back(), pg->size() - 1);
    EXPECT_EQ(output.front(), 0);
  });
}

TEST_P(AllToAll, Lists) {
  run([](const ProcessGroupPtr& pg) {
    for (const std::size_t unit : {1UL, 900UL, 6000UL}) {
      // Rank f sends (f + 2 t) units to rank t, so rank 0 sends nothing to itself.
      const auto count = [&](int from, int to) { return index(from + 2 * to) * unit; };
      std::vector<std::vector<std::int64_t>> inputs;
      std::vector<std::vector<std::int64_t>> outputs;
      for (int r = 0; r < pg->size(); ++r) {
        inputs.emplace_back(count(pg->rank(), r), item(pg->rank(), r, 1));
        outputs.emplace_back(count(r, pg->rank()), -1);
      }
      pg->all_to_all(outputs, inputs);
      for (int r = 0; r < pg->size(); ++r) {
        EXPECT_EQ(outputs[index(r)], std::vector<std::int64_t>(count(r, pg->rank()), item(r, pg->rank(), 1)));
      }
    }
  });
}

TEST_P(AllToAll, RefusesSplitsThatDoNotAddUp) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = index(pg->size());
    std::vector<int> in(2 * n);
    std::vector<int> out(2 * n);
    std::vector<int> odd(2 * n + 1);
    std::vector<std::int64_t> twos(n, 2);
    std::vector<std::int64_t> too_many(n, 3);
    std::vector<std::int64_t> negative(n, 2);
    negative.front() = -1;
    negative.back() += 3;
    std::vector<std::int64_t> longer(n + 1, 0);
    longer.front() = static_cast<std::int64_t>(2 * n);
    const auto refused = [&](const std::string& text, const AllToAllOptions& options) {
      expect_refused<ValueError>(*pg, text, [&] { pg->all_to_all(out, in, options); });
    };
    refused("input splits", {.output_splits = twos, .input_splits = too_many});
    refused("output splits", {.output_splits = too_many, .input_splits = twos});
    refused("input splits", {.output_splits = twos, .input_splits = longer});
    refused("output splits", {.output_splits = longer, .input_splits = twos});
    if (n > 1) {
      refused("input splits", {.input_splits = negative});
      expect_refused<ValueError>(*pg, "not divisible", [&] { pg->all_to_all(odd, odd); });
    }
    std::vector<float> real(2 * n);
    expect_refused<TypeError>(*pg, "f32", [&] { pg->all_to_all(real, in); });

    std::vector<std::vector<int>> lists(n, std::vector<int>(2));
    std::vector<std::vector<int>> short_list(n - 1, std::vector<int>(2));
    std::vector<std::vector<float>> reals(n, std::vector<float>(2));
    expect_refused<ValueError>(*pg, "inputs", [&] { pg->all_to_all(lists, short_list); });
    expect_refused<ValueError>(*pg, "outputs", [&] { pg->all_to_all(short_list, lists); });
    expect_refused<TypeError>(*pg, "f32", [&] { pg->all_to_all(lists, reals); });
    expect_refused<ValueError>(*pg, "splits", [&] { pg->all_to_all(lists, lists, {.input_splits = twos}); });
    expect_works(*pg);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, AllToAll, every_arrangement(), arrangement_name);

}  // namespace
}  // namespace cohort::test
