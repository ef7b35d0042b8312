// SPDX-License-Identifier: BSD-3-Clause
//
// Broadcast, gather, all-gather, scatter and reduce-scatter: all data arrives where it belongs, and nothing else is
// touched.
#include "backends/shm/auto_tuner.h"
#include "backends/shm/collectives/tuning.h"
#include "group/arrangements.h"
#include "group/payload.h"
#include "support/debug_level_scope.h"

namespace cohort::test {
namespace {

/// Numbers of elements of one rank: none, few, around the capacity of a post, and several chunks with a partial last
/// one.
std::vector<std::size_t> counts(DType dtype) {
  const auto post = shm::post_bytes / size_of(dtype);
  return {0, 1, 5, post, post + 1, 5 * shm::exchange_chunk(std::size_t{1} << 30U) / size_of(dtype) + 3};
}
std::vector<std::size_t> few_counts(DType dtype) {
  return {0, 3, 30'000 / size_of(dtype) + 1};
}

/// The content of a buffer before the operation, which no operation could produce.
ByteVector untouched(std::size_t bytes) {
  ByteVector all(bytes, 0xEE);
  return all;
}

template <class Body>
void sweep(const Body& body) {
  for (const auto place : places()) {
    for (const auto count : counts(DType::f32)) body(DType::f32, count, place);
  }
  for (const auto dtype : all_dtypes) {
    for (const auto count : few_counts(dtype)) body(dtype, count, Place::mixed);
  }
}

class DataMovement : public OnEveryArrangement {};

TEST_P(DataMovement, BroadcastFromEveryRoot) {
  run([](const ProcessGroupPtr& pg) {
    sweep([&](DType dtype, std::size_t count, Place place) {
      for (int root = 0; root < pg->size(); ++root) {
        const Memory memory(*pg, place, values(dtype, pg->rank(), count), 1);
        const auto work = pg->broadcast(memory.buffer(dtype), {.root = root});
        EXPECT_TRUE(holds(memory, dtype, values(dtype, root, count)))
            << count << " from " << root << ", " << to_string(place);
        EXPECT_EQ(work.result().size(), 1U);
      }
    });
  });
}

TEST_P(DataMovement, ReduceToEveryRootLeavesTheOthersAlone) {
  const auto n = size();
  run([n](const ProcessGroupPtr& pg) {
    for (const auto place : places()) {
      for (const std::size_t count : {0UL, 1UL, 9UL, 2049UL, 100'003UL}) {
        for (int root = 0; root < n; ++root) {
          std::vector<std::int32_t> mine(count, pg->rank() + 1);
          const Memory memory(*pg, place, count * 4);
          if (count > 0) std::memcpy(memory.data(), mine.data(), count * 4);
          pg->reduce(memory.buffer(DType::i32), {.root = root});
          if (pg->rank() == root) mine.assign(count, n * (n + 1) / 2);
          EXPECT_TRUE(count == 0 || std::memcmp(memory.data(), mine.data(), count * 4) == 0)
              << count << " to " << root << ", " << to_string(place);
          EXPECT_TRUE(memory.fences_stand());
        }
      }
    }
  });
}

TEST_P(DataMovement, AllGatherIntoOneBuffer) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = index(pg->size());
    sweep([&](DType dtype, std::size_t count, Place place) {
      ByteVector everything;
      for (int rank = 0; rank < pg->size(); ++rank) {
        const auto theirs = values(dtype, rank, count);
        everything.insert(everything.end(), theirs.begin(), theirs.end());
      }
      const auto mine = values(dtype, pg->rank(), count);
      const Memory input(*pg, place, mine, 1);
      const Memory output(*pg, place, untouched(n * mine.size()));
      pg->all_gather(output.buffer(dtype), input.buffer(dtype));
      EXPECT_TRUE(holds(output, dtype, everything)) << count << ", " << to_string(place);
      EXPECT_TRUE(holds(input, dtype, mine));

      // In place: the input is this rank's part of the output.
      const Memory both(*pg, place, untouched(n * mine.size()));
      auto* const own = both.data() + index(pg->rank()) * mine.size();
      std::copy(mine.begin(), mine.end(), own);
      pg->all_gather(both.buffer(dtype), ConstBuffer(own, dtype, {static_cast<std::int64_t>(count)}));
      EXPECT_TRUE(holds(both, dtype, everything)) << count << " in place, " << to_string(place);
    });
  });
}

TEST_P(DataMovement, AllGatherIntoAListOfUnevenSizes) {
  run([](const ProcessGroupPtr& pg) {
    for (const auto place : places()) {
      for (const std::size_t step : {0UL, 1UL, 700UL, 3000UL, 50'000UL}) {
        // Rank 0 has no elements, unless all ranks have the same number.
        const auto count_of = [&](int rank) { return step == 1 ? 4 : index(rank) * step; };
        const Memory input(*pg, place, values(DType::i64, pg->rank(), count_of(pg->rank())));
        std::vector<Memory> outputs;
        std::vector<Buffer> list;
        outputs.reserve(index(pg->size()));
        for (int rank = 0; rank < pg->size(); ++rank) outputs.emplace_back(*pg, place, untouched(count_of(rank) * 8));
        list.reserve(index(pg->size()));
        for (const auto& each : outputs) list.push_back(each.buffer(DType::i64));
        const auto work = pg->all_gather(list, input.buffer(DType::i64));
        for (int rank = 0; rank < pg->size(); ++rank) {
          EXPECT_TRUE(holds(outputs[index(rank)], DType::i64, values(DType::i64, rank, count_of(rank))))
              << "from " << rank << ", " << to_string(place);
        }
        EXPECT_EQ(work.result().size(), list.size());
      }
    }
  });
}

TEST(DataMovementMismatch, RanksThatDisagreeAboutUnevenSizesAreTold) {
  // Rank 0 expects from rank 1 the size that rank 2 has. All ranks expect the same total.
  for (const std::size_t unit : {1UL, 4UL, 1000UL, 1500UL, 5000UL}) {
    with_threads(3, [unit](const ProcessGroupPtr& pg) {
      const auto more = pg->rank() == 0 ? 1U : 2U;
      std::vector<std::vector<std::int32_t>> outputs(3, std::vector<std::int32_t>(unit, -1));
      outputs[more].resize(2 * unit, -1);
      const std::vector<std::int32_t> input(outputs[index(pg->rank())].size(), pg->rank());
      bool was_told = false;
      try {
        pg->all_gather(outputs, input);
        pg->barrier();
      } catch (const MismatchError& e) {
        was_told = true;
      }
      EXPECT_TRUE(was_told) << "rank " << pg->rank() << ", " << unit << " elements";
    });
  }
}

TEST_P(DataMovement, AllGatherCoalesced) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = pg->size();
    std::vector<std::int32_t> few(3, pg->rank());
    std::vector<double> many(9000, pg->rank() + 0.5);
    std::vector<std::uint8_t> none;

    std::vector<std::vector<std::int32_t>> few_outputs(index(n), std::vector<std::int32_t>(3, -1));
    std::vector<std::vector<double>> many_outputs(index(n), std::vector<double>(9000, -1));
    std::vector<BufferList> lists;
    for (std::size_t r = 0; r < index(n); ++r) lists.push_back(BufferList{few_outputs[r], many_outputs[r], none});
    const auto before = pg->sequence_number();
    pg->all_gather_coalesced(lists, ConstBufferList{few, many, none});
    EXPECT_EQ(pg->sequence_number(), before + 1);
    for (int r = 0; r < n; ++r) {
      EXPECT_EQ(few_outputs[index(r)], std::vector<std::int32_t>(3, r));
      EXPECT_EQ(many_outputs[index(r)], std::vector<double>(9000, r + 0.5));
    }

    std::vector<std::int32_t> all_few(3 * index(n), -1);
    std::vector<double> all_many(9000 * index(n), -1);
    pg->all_gather_coalesced(BufferList{all_few, all_many, none}, ConstBufferList{few, many, none});
    for (std::size_t r = 0; r < index(n); ++r) {
      EXPECT_EQ(all_few[3 * r + 2], static_cast<std::int32_t>(r));
      EXPECT_EQ(all_many[9000 * r + 8999], static_cast<double>(r) + 0.5);
    }
  });
}

TEST_P(DataMovement, GatherToEveryRoot) {
  run([](const ProcessGroupPtr& pg) {
    sweep([&](DType dtype, std::size_t count, Place place) {
      const int root = static_cast<int>(count) % pg->size();
      const Memory input(*pg, place, values(dtype, pg->rank(), count), 1);
      std::vector<Memory> outputs;
      std::vector<Buffer> list;
      outputs.reserve(index(pg->size()));
      for (int rank = 0; rank < (pg->rank() == root ? pg->size() : 0); ++rank) {
        outputs.emplace_back(*pg, place, untouched(count * size_of(dtype)));
      }
      list.reserve(index(pg->size()));
      for (const auto& each : outputs) list.push_back(each.buffer(dtype));
      const auto work = pg->gather(list, input.buffer(dtype), {.root = root});
      for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
        EXPECT_TRUE(holds(outputs[rank], dtype, values(dtype, static_cast<int>(rank), count)))
            << count << " from " << rank << ", " << to_string(place);
      }
      EXPECT_EQ(work.result().size(), outputs.size());
    });
    for (int root = 0; root < pg->size(); ++root) {
      const std::vector<int> mine(4, pg->rank());
      std::vector<std::vector<int>> all(pg->rank() == root ? index(pg->size()) : 0, std::vector<int>(4, -1));
      pg->gather(all, mine, {.root = root});
      for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r], std::vector<int>(4, static_cast<int>(r)));
    }
  });
}

TEST_P(DataMovement, GatherOfUnevenSizesToEveryRoot) {
  run([](const ProcessGroupPtr& pg) {
    for (const auto place : places()) {
      for (const std::size_t step : {0UL, 1UL, 700UL, 3000UL, 50'000UL}) {
        // Rank 0 has no elements, unless all ranks have the same number.
        const auto count_of = [&](int rank) { return step == 1 ? 4 : index(rank) * step; };
        for (int root = 0; root < pg->size(); ++root) {
          const Memory input(*pg, place, values(DType::u64, pg->rank(), count_of(pg->rank())));
          std::vector<Memory> outputs;
          std::vector<Buffer> list;
          outputs.reserve(index(pg->size()));
          for (int rank = 0; pg->rank() == root && rank < pg->size(); ++rank) {
            outputs.emplace_back(*pg, place, untouched(count_of(rank) * 8));
          }
          list.reserve(outputs.size());
          for (const auto& each : outputs) list.push_back(each.buffer(DType::u64));
          const auto before = pg->sequence_number();
          const auto work = pg->gather(list, input.buffer(DType::u64), {.root = root, .uneven = true});
          EXPECT_EQ(pg->sequence_number(), before + 1);
          for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
            const auto from = static_cast<int>(rank);
            EXPECT_TRUE(holds(outputs[rank], DType::u64, values(DType::u64, from, count_of(from))))
                << "from " << rank << " to " << root << ", " << to_string(place);
          }
          EXPECT_EQ(work.result().size(), outputs.size());
        }
      }
    }
  });
}

TEST_P(DataMovement, GatherRefusesUnevenSizesUnlessTold) {
  run([](const ProcessGroupPtr& pg) {
    const std::vector<int> mine(4, pg->rank());
    std::vector<std::vector<int>> all(pg->rank() == 0 ? index(pg->size()) : 0, std::vector<int>(4, -1));
    if (pg->rank() == 0) {
      all.back().resize(5);
      const auto* const text = pg->size() == 1 ? "own output" : "uneven = true";
      expect_refused<ValueError>(*pg, text, [&] { pg->gather(all, mine); });
      all.front().resize(5);
      expect_refused<ValueError>(*pg, "own output", [&] { pg->gather(all, mine, {.uneven = true}); });
    }
    expect_works(*pg);
  });
}

TEST(DataMovementMismatch, ARootThatExpectsAnotherSizeOfAnUnevenGatherIsTold) {
  for (const std::size_t unit : {1UL, 1000UL, 50'000UL}) {
    with_threads(3, [unit](const ProcessGroupPtr& pg) {
      std::vector<std::vector<std::int32_t>> outputs(pg->rank() == 0 ? 3 : 0, std::vector<std::int32_t>(unit));
      const std::vector<std::int32_t> input(pg->rank() == 2 ? 2 * unit : unit, pg->rank());
      EXPECT_THROW(
          {
            pg->gather(outputs, input, {.uneven = true});
            pg->barrier();
          },
          MismatchError)
          << "rank " << pg->rank() << ", " << unit << " elements";
    });
  }
}

TEST(DataMovementMismatch, AnUnevenGatherIsComparedAtDetailLikeOthers) {
  const DebugLevelScope debug(DebugLevel::detail);
  with_threads(3, [](const ProcessGroupPtr& pg) {
    const auto gather = [&](int root) {
      std::vector<std::vector<int>> outputs;
      for (std::size_t r = 0; pg->rank() == root && r < 3; ++r) outputs.emplace_back(r, -1);
      pg->gather(outputs, std::vector<int>(index(pg->rank()), pg->rank()), {.root = root, .uneven = true});
      if (pg->rank() == root) {
        EXPECT_EQ(outputs[2], (std::vector<int>{2, 2}));
      }
    };
    gather(0);
    gather(2);
    EXPECT_ERROR(MismatchError, gather(pg->rank() == 0 ? 0 : 1), "root");
  });
}

TEST_P(DataMovement, ScatterFromEveryRoot) {
  run([](const ProcessGroupPtr& pg) {
    sweep([&](DType dtype, std::size_t count, Place place) {
      const int root = static_cast<int>(count) % pg->size();
      const Memory output(*pg, place, untouched(count * size_of(dtype)), 1);
      std::vector<Memory> inputs;
      std::vector<ConstBuffer> list;
      inputs.reserve(index(pg->size()));
      for (int rank = 0; rank < (pg->rank() == root ? pg->size() : 0); ++rank) {
        inputs.emplace_back(*pg, place, values(dtype, rank, count));
      }
      list.reserve(index(pg->size()));
      for (const auto& each : inputs) list.push_back(each.buffer(dtype));
      pg->scatter(output.buffer(dtype), list, {.root = root});
      EXPECT_TRUE(holds(output, dtype, values(dtype, pg->rank(), count)))
          << count << " from " << root << ", " << to_string(place);
    });
    for (int root = 0; root < pg->size(); ++root) {
      std::vector<std::vector<int>> all(pg->rank() == root ? index(pg->size()) : 0);
      for (std::size_t r = 0; r < all.size(); ++r) all[r].assign(4, static_cast<int>(r) + 10 * root);
      std::vector<int> mine(4, -1);
      pg->scatter(mine, all, {.root = root});
      EXPECT_EQ(mine, std::vector<int>(4, pg->rank() + 10 * root));
    }
  });
}

TEST_P(DataMovement, ReduceScatterInEveryForm) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = pg->size();
    const auto rank = pg->rank();
    for (const auto place : places()) {
      for (const auto count : counts(DType::f32)) {
        std::vector<float> mine(count * index(n), static_cast<float>(rank + 1));
        const Memory input(*pg, place, mine.size() * 4);
        if (!mine.empty()) std::memcpy(input.data(), mine.data(), mine.size() * 4);
        std::vector<float> output(count, -1);
        // The result is there when the Work is completed, even without a wait().
        const auto work = pg->reduce_scatter(output, input.buffer(DType::f32), {.async_op = true});
        while (!work.is_completed()) std::this_thread::yield();
        EXPECT_EQ(output, std::vector<float>(count, static_cast<float>(n * (n + 1)) / 2)) << to_string(place);
      }
    }
    // Rank r gets r * 2000 + 1 elements; each rank contributes its own rank plus r.
    const auto count_of = [](std::size_t r) { return r * 2000 + 1; };
    std::vector<std::vector<std::int64_t>> inputs;
    for (std::size_t r = 0; r < index(n); ++r) inputs.emplace_back(count_of(r), rank + static_cast<std::int64_t>(r));
    std::vector<std::int64_t> output(count_of(index(rank)), -1);
    pg->reduce_scatter(output, inputs, {.op = ReduceOp::max()});
    EXPECT_EQ(output, std::vector<std::int64_t>(output.size(), n - 1 + rank));

    std::vector<float> few(2 * index(n), 1);
    std::vector<std::int16_t> more(9000 * index(n), 2);
    std::vector<float> few_out(2, -1);
    std::vector<std::int16_t> more_out(9000, -1);
    const auto before = pg->sequence_number();
    pg->reduce_scatter_coalesced(BufferList{few_out, more_out}, ConstBufferList{few, more});
    EXPECT_EQ(pg->sequence_number(), before + 1);
    EXPECT_EQ(few_out, std::vector<float>(2, static_cast<float>(n)));
    EXPECT_EQ(more_out, std::vector<std::int16_t>(9000, static_cast<std::int16_t>(2 * n)));
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, DataMovement, every_arrangement(), arrangement_name);

/// Pieces of several chunks, for which the AutoTuner tries staging and reading in turn, with enough rounds that both
/// are used.
class LargePieces : public OnEveryArrangement {
 protected:
  static constexpr std::size_t count = (std::size_t{1} << 20U) / sizeof(int) + 1001;
  static_assert(count * sizeof(int) >= shm::AutoTuner::smallest);
  static constexpr int rounds = 5;

  /// A different value for each sender, receiver and round.
  static int value(int from, int to, int round) { return (from * 100 + to) * 100 + round; }
  static std::span<int> part(std::vector<int>& all, int rank) {
    return std::span(all).subspan(static_cast<std::size_t>(rank) * count, count);
  }
  static void expect_all(std::span<const int> data, int expected) {
    EXPECT_EQ(std::count(data.begin(), data.end(), expected), static_cast<std::ptrdiff_t>(data.size())) << expected;
  }
};

TEST_P(LargePieces, ArriveWhicheverWayTheyTake) {
  run([](const ProcessGroupPtr& pg) {
    const int size = pg->size();
    const int rank = pg->rank();
    std::vector<int> one(count);
    std::vector<int> sent(count * static_cast<std::size_t>(size));
    std::vector<int> received(sent.size());
    for (int round = 0; round < rounds; ++round) {
      const int root = round % size;
      std::fill(one.begin(), one.end(), value(rank, 0, round));
      pg->broadcast(one, {.root = root});
      expect_all(one, value(root, 0, round));

      std::fill(one.begin(), one.end(), value(rank, 1, round));
      pg->all_gather(received, one);
      for (int from = 0; from < size; ++from) expect_all(part(received, from), value(from, 1, round));

      for (int to = 0; to < size; ++to) std::fill_n(part(sent, to).begin(), count, value(rank, to, round));
      pg->all_to_all(received, sent);
      for (int from = 0; from < size; ++from) expect_all(part(received, from), value(from, rank, round));
    }
  });
}

TEST_P(LargePieces, ArriveAsMessagesWhicheverWayTheyTake) {
  run([](const ProcessGroupPtr& pg) {
    const int next = (pg->rank() + 1) % pg->size();
    const int previous = (pg->rank() + pg->size() - 1) % pg->size();
    std::vector<int> sent(count);
    std::vector<int> received(count);
    for (int round = 0; round < rounds; ++round) {
      std::fill(sent.begin(), sent.end(), value(pg->rank(), next, round));
      const auto sending = pg->send(sent, next, {.async_op = true});
      pg->recv(received, previous);
      sending.wait();
      expect_all(received, value(previous, pg->rank(), round));
    }
  });
}

TEST_P(LargePieces, AreAllReducedWhicheverWayTheyTake) {
  run([](const ProcessGroupPtr& pg) {
    const int size = pg->size();
    const auto total = count * static_cast<std::size_t>(size);
    const auto fill = [&](std::span<int> data, int round) {
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = value(pg->rank(), 0, round) + static_cast<int>(i % 1009);
    };
    const auto expect_sums = [&](std::span<const int> data, int round) {
      int all = 0;
      for (int from = 0; from < size; ++from) all += value(from, 0, round);
      for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], all + size * static_cast<int>(i % 1009)) << i;
    };
    std::vector<int> ordinary(total);
    std::vector<int> out(total);
    // Rank 0 has its data in memory of the group, where there is one.
    const Memory shared(*pg, pg->rank() == 0 ? places().back() : places().front(), total * sizeof(int));
    for (int round = 0; round < rounds; ++round) {
      fill(ordinary, round);
      pg->all_reduce(ordinary);  // in place
      expect_sums(ordinary, round);

      fill(std::span(reinterpret_cast<int*>(shared.data()), total), round);
      pg->all_reduce(shared.buffer(DType::i32));
      expect_sums(std::span(reinterpret_cast<const int*>(shared.data()), total), round);

      fill(ordinary, round);
      std::copy(ordinary.begin(), ordinary.end(), out.begin());
      pg->all_reduce(out);
      pg->reduce(ordinary, {.root = round % size});
      if (pg->rank() == round % size) {
        EXPECT_EQ(ordinary, out);
      }
    }
  });
}

TEST_P(LargePieces, AreReducedWhicheverWayTheyTake) {
  run([](const ProcessGroupPtr& pg) {
    const int size = pg->size();
    const int rank = pg->rank();
    // The values of an input differ from element to element, so that a piece from another place would be seen.
    const auto at = [](std::size_t i) { return static_cast<int>(i % 1009); };
    const auto expect_sums = [&](std::span<const int> data, int round) {
      int all = 0;
      for (int from = 0; from < size; ++from) all += value(from, rank, round);
      for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], all + size * at(i)) << i;
    };
    std::vector<int> one(count);
    std::vector<int> given(count * static_cast<std::size_t>(size));
    // Rank 0 has its input in memory of the group, where there is one.
    const Memory shared(*pg, rank == 0 ? places().back() : places().front(), given.size() * sizeof(int));
    for (int round = 0; round < rounds; ++round) {
      for (int to = 0; to < size; ++to) {
        for (std::size_t i = 0; i < count; ++i) part(given, to)[i] = value(rank, to, round) + at(i);
      }
      std::memcpy(shared.data(), given.data(), given.size() * sizeof(int));
      pg->reduce_scatter(one, given);
      expect_sums(one, round);

      std::fill(one.begin(), one.end(), -1);
      pg->reduce_scatter(one, shared.buffer(DType::i32));
      expect_sums(one, round);

      pg->reduce_scatter(part(given, rank), given);  // in place
      expect_sums(part(given, rank), round);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, LargePieces, arrangements_of_several(), arrangement_name);

/// Pieces that are written past the caches.
class VeryLargePieces : public OnEveryArrangement {};

TEST_P(VeryLargePieces, AreReducedInPlaceAndOutOfPlace) {
  run([](const ProcessGroupPtr& pg) {
    constexpr std::size_t each = (std::size_t{8} << 20U) / sizeof(int) + 1001;
    const auto n = static_cast<std::size_t>(pg->size());
    for (const auto place : places()) {
      const Memory memory(*pg, place, n * each * sizeof(int));
      const std::span given(reinterpret_cast<int*>(memory.data()), n * each);
      for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<int>(i % 1009) + pg->rank();
      const auto own = given.subspan(static_cast<std::size_t>(pg->rank()) * each, each);
      std::vector<int> expected(own.begin(), own.end());
      for (auto& value : expected) value = pg->size() * (value - pg->rank()) + pg->size() * (pg->size() - 1) / 2;
      std::vector<int> out(each);
      pg->reduce_scatter(out, given);
      EXPECT_EQ(out, expected);
      pg->reduce_scatter(own, given);
      EXPECT_TRUE(std::equal(own.begin(), own.end(), expected.begin()));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, VeryLargePieces, arrangements_of_several(), arrangement_name);

}  // namespace
}  // namespace cohort::test
