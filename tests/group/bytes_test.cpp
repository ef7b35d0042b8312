// SPDX-License-Identifier: BSD-3-Clause
//
// Collectives of byte strings, and all_ok, which is built from them.
#include <stdexcept>

#include "group/arrangements.h"

namespace cohort::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Arbitrary bytes, including zeros.
std::string text_of(int rank, std::size_t length) {
  std::string text(length, '\0');
  for (std::size_t i = 0; i < length; ++i) text[i] = static_cast<char>((i * 7 + index(rank)) % 256);
  return text;
}

class ByteStrings : public OnEveryArrangement {};

TEST_P(ByteStrings, AllGatherOfDifferentLengths) {
  run([](const ProcessGroupPtr& pg) {
    const auto check = [&](const std::function<std::size_t(int)>& length) {
      std::vector<std::string> expected;
      expected.reserve(index(pg->size()));
      for (int rank = 0; rank < pg->size(); ++rank) expected.push_back(text_of(rank, length(rank)));
      const auto before = pg->sequence_number();
      EXPECT_EQ(pg->all_gather_bytes(text_of(pg->rank(), length(pg->rank()))), expected);
      EXPECT_EQ(pg->sequence_number(), before + 1);
    };
    check([](int) { return 0; });
    check([](int) { return 1; });
    check([](int rank) { return index(rank); });
    check([](int rank) { return index(rank) * 5000; });
    check([&](int rank) { return rank == pg->size() - 1 ? 1'000'003 : 0; });
    check([](int rank) { return rank % 2 == 0 ? 100'001 : 3; });
  });
}

TEST_P(ByteStrings, GatherOfDifferentLengthsToEveryRoot) {
  run([](const ProcessGroupPtr& pg) {
    const auto check = [&](int root, const std::function<std::size_t(int)>& length) {
      std::vector<std::string> expected;
      for (int rank = 0; pg->rank() == root && rank < pg->size(); ++rank) {
        expected.push_back(text_of(rank, length(rank)));
      }
      const auto before = pg->sequence_number();
      EXPECT_EQ(pg->gather_bytes(text_of(pg->rank(), length(pg->rank())), {.root = root}), expected);
      EXPECT_EQ(pg->sequence_number(), before + 1);
    };
    for (int root = 0; root < pg->size(); ++root) {
      check(root, [](int) { return 0; });
      check(root, [](int rank) { return index(rank) * 5000; });
      check(root, [&](int rank) { return rank == pg->size() - 1 ? 1'000'003 : 0; });
      check(root, [](int rank) { return rank % 2 == 0 ? 100'001 : 3; });
    }
    expect_refused<ValueError>(*pg, "root 99", [&] { pg->gather_bytes("x", {.root = 99}); });
  });
}

TEST_P(ByteStrings, BroadcastFromEveryRoot) {
  run([](const ProcessGroupPtr& pg) {
    for (int root = 0; root < pg->size(); ++root) {
      for (const std::size_t length : {0UL, 1UL, 8192UL, 8193UL, 700'001UL}) {
        const auto expected = text_of(root, length);
        // What the other ranks pass does not matter, nor does its length.
        EXPECT_EQ(pg->broadcast_bytes(pg->rank() == root ? expected : text_of(9, 20), {.root = root}), expected);
      }
    }
  });
}

TEST_P(ByteStrings, OnlyBlocking) {
  run([](const ProcessGroupPtr& pg) {
    expect_refused<ValueError>(*pg, "blocking", [&] { pg->all_gather_bytes("x", {.async_op = true}); });
    expect_refused<ValueError>(*pg, "blocking", [&] { pg->gather_bytes("x", {.async_op = true}); });
    expect_refused<ValueError>(*pg, "blocking", [&] { pg->broadcast_bytes("x", {.async_op = true}); });
    expect_works(*pg);
  });
}

TEST_P(ByteStrings, TakeTheirTurnAmongTheOthers) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<float> x(30'000, 1);
    const auto work = pg->all_reduce(x, {.async_op = true});
    EXPECT_EQ(pg->all_gather_bytes("abc"), std::vector<std::string>(index(pg->size()), "abc"));
    EXPECT_TRUE(work.is_success());
    EXPECT_EQ(x[0], static_cast<float>(pg->size()));
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, ByteStrings, every_arrangement(), arrangement_name);

class AllOk : public OnEveryArrangement {
 protected:
  /// Throws on the ranks from `first` on, and returns the error that each rank gets.
  static void expect_failure(ProcessGroup& pg, int first) {
    bool was_called = false;
    const auto body = [&] {
      was_called = true;
      if (pg.rank() >= first) throw std::runtime_error("no disk on " + std::to_string(pg.rank()));
    };
    try {
      pg.all_ok(body);
      ADD_FAILURE() << "rank " << first << " failed, and rank " << pg.rank() << " was not told";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), AllOf(HasSubstr("rank " + std::to_string(first) + " failed"),
                                  HasSubstr("no disk on " + std::to_string(first))));
      EXPECT_EQ(e.context().rank, first);
      EXPECT_EQ(e.context().group, pg.id());
    }
    EXPECT_TRUE(was_called);
  }
};

TEST_P(AllOk, PassesIfNoneThrows) {
  run([](const ProcessGroupPtr& pg) {
    int calls = 0;
    pg->all_ok([&] { ++calls; });
    EXPECT_EQ(calls, 1);
    // The function may use the group itself.
    pg->all_ok([&] { expect_works(*pg); });
  });
}

TEST_P(AllOk, OneThrowsAndAllAreTold) {
  run([](const ProcessGroupPtr& pg) {
    expect_failure(*pg, pg->size() - 1);
    pg->all_ok([] {});
    expect_works(*pg);
  });
}

TEST_P(AllOk, SeveralThrowAndTheLowestIsNamed) {
  run([](const ProcessGroupPtr& pg) {
    for (int first = 0; first < pg->size(); ++first) expect_failure(*pg, first);
    expect_works(*pg);
  });
}

TEST_P(AllOk, SaysSomethingWhateverIsThrown) {
  run([](const ProcessGroupPtr& pg) {
    const auto is_last = pg->rank() == pg->size() - 1;
    const auto place = "rank " + std::to_string(pg->size() - 1) + " failed: ";
    EXPECT_ERROR(Error, pg->all_ok([&] {
      if (is_last) throw std::runtime_error("");
    }),
                 place);
    EXPECT_ERROR(Error, pg->all_ok([&] {
      if (is_last) throw 7;
    }),
                 place);
    const std::string long_text(100'000, 'x');
    EXPECT_ERROR(Error, pg->all_ok([&] {
      if (is_last) throw std::runtime_error(long_text);
    }),
                 long_text);
    expect_works(*pg);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, AllOk, every_arrangement(), arrangement_name);

}  // namespace
}  // namespace cohort::test
