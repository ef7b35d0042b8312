// SPDX-License-Identifier: BSD-3-Clause
//
// Structs and wide unsigned integers in the operations that move data, as users write them.
#include <array>
#include <cstdint>
#include <list>
#include <string>
#include <utility>

#include "group/arrangements.h"

namespace cohort::test {
namespace {

/// With padding, whose bytes are moved but not compared.
struct Token {
  std::int64_t id;
  float score;
  std::array<char, 3> tag;

  friend bool operator==(const Token&, const Token&) = default;
};

Token token(int rank, std::size_t i) {
  return {.id = static_cast<std::int64_t>(i) * 1000 + rank,
          .score = static_cast<float>(rank) + 0.5F,
          .tag = {'t', static_cast<char>('a' + rank), '\0'}};
}

std::vector<Token> tokens(int rank, std::size_t count) {
  std::vector<Token> all;
  all.reserve(count);
  for (std::size_t i = 0; i < count; ++i) all.push_back(token(rank, i));
  return all;
}

class Structs : public OnEveryArrangement {};

TEST_P(Structs, AreMovedByEveryOperation) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = index(pg->size());
    const int rank = pg->rank();
    for (const std::size_t count : {0UL, 1UL, 7UL, 5000UL}) {
      const int root = static_cast<int>(count) % pg->size();
      const auto mine = tokens(rank, count);

      auto copy = mine;
      pg->broadcast(copy, {.root = root});
      EXPECT_EQ(copy, tokens(root, count));

      std::vector<Token> everything(n * count);
      pg->all_gather(everything, mine);
      std::vector<std::vector<Token>> list(n, std::vector<Token>(count));
      pg->all_gather(list, std::span(mine));
      std::vector<std::vector<Token>> at_root(rank == root ? n : 0, std::vector<Token>(count));
      pg->gather(at_root, mine, {.root = root});
      for (std::size_t r = 0; r < n; ++r) {
        const auto expected = tokens(static_cast<int>(r), count);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), everything.begin() + std::ptrdiff_t(r * count)));
        EXPECT_EQ(list[r], expected);
        if (rank == root) {
          EXPECT_EQ(at_root[r], expected);
        }
      }

      std::vector<Token> part(count);
      pg->scatter(part, at_root, {.root = root});
      EXPECT_EQ(part, mine) << "what was gathered, given back";

      std::vector<Token> swapped(n * count);
      pg->all_to_all(swapped, everything);
      for (std::size_t r = 0; r < n && count > 0; ++r) EXPECT_EQ(swapped[r * count], token(rank, 0));

      const int next = (rank + 1) % pg->size();
      const int previous = (rank + pg->size() - 1) % pg->size();
      auto batch = pg->batch();
      batch.send(mine, next);
      batch.recv(copy, previous);
      batch.run();
      EXPECT_EQ(copy, tokens(previous, count));
    }
  });
}

TEST_P(Structs, SplitsCountThemAndNotTheirBytes) {
  run([](const ProcessGroupPtr& pg) {
    // Rank r sends r + 1 objects to each rank.
    const auto n = index(pg->size());
    const auto own = index(pg->rank()) + 1;
    std::vector<Token> sent;
    for (std::size_t to = 0; to < n; ++to) {
      for (std::size_t i = 0; i < own; ++i) sent.push_back(token(pg->rank(), to));
    }
    std::vector<std::int64_t> from;
    for (std::size_t r = 0; r < n; ++r) from.push_back(static_cast<std::int64_t>(r) + 1);
    std::vector<Token> received(n * (n + 1) / 2);
    pg->all_to_all(
        received, sent,
        {.output_splits = from, .input_splits = std::vector<std::int64_t>(n, static_cast<std::int64_t>(own))});
    std::size_t at = 0;
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t i = 0; i <= r; ++i) {
        EXPECT_EQ(received[at++], token(static_cast<int>(r), index(pg->rank())));
      }
    }
  });
}

TEST_P(Structs, AreNotAddedUp) {
  run([](const ProcessGroupPtr& pg) {
    auto mine = tokens(pg->rank(), 3);
    expect_refused<TypeError>(*pg, "cohort::Reduction<T>",
                              [&] { pg->all_reduce(mine, AllReduceOptions{.op = ReduceOp::max()}); });
    expect_works(*pg);
  });
}

TEST_P(Structs, UnsignedIntegersAreNumbers) {
  run([](const ProcessGroupPtr& pg) {
    const auto each = [&]<class T>(T largest) {
      // Signed integers of the same bits would have another maximum and minimum.
      std::vector<T> x{pg->rank() == 0 ? largest : T{1}, T{1}};
      pg->all_reduce(x, {.op = ReduceOp::max()});
      EXPECT_EQ(x, (std::vector<T>{largest, 1}));
      x = {pg->rank() == 0 ? largest : T{1}, largest};
      pg->reduce(x, {.op = ReduceOp::min()});
      if (pg->rank() == 0) {
        EXPECT_EQ(x, (std::vector<T>{pg->size() > 1 ? T{1} : largest, largest}));
      }
      x = {largest, T{1}};
      pg->all_reduce(x);
      EXPECT_EQ(x[0], static_cast<T>(T{0} - static_cast<T>(pg->size()))) << "wraps around";
    };
    each(std::uint16_t{0xFFFF});
    each(std::uint32_t{0xFFFFFFFF});
    each(std::uint64_t{0xFFFFFFFFFFFFFFFF});
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Structs, every_arrangement(), arrangement_name);

TEST(StructBuffers, HaveOneRowOfBytesPerObject) {
  std::vector<Token> vector(5);
  const Buffer buffer(vector);
  EXPECT_EQ(buffer.dtype(), DType::raw);
  EXPECT_EQ(buffer.sizes(), (Dims{5, sizeof(Token)}));
  EXPECT_EQ(buffer.bytes(), 5 * sizeof(Token));
  std::array<Token, 2> array{};
  EXPECT_EQ(ConstBuffer(array).bytes(), 2 * sizeof(Token));
  EXPECT_EQ(Buffer(std::span(vector).first(1)).bytes(), sizeof(Token));

  struct WithText {
    std::string text;
  };
  static_assert(!std::is_convertible_v<std::vector<WithText>&, Buffer>, "copies of a string are not copies of bytes");
  static_assert(!std::is_convertible_v<std::vector<int*>&, Buffer>, "a pointer means nothing on another rank");
  static_assert(!std::is_convertible_v<std::vector<std::pair<int, std::string>>&, Buffer>);
  static_assert(!std::is_convertible_v<std::list<Token>&, Buffer>, "not contiguous");
  static_assert(!std::is_convertible_v<const std::vector<Token>&, Buffer>, "const memory is not written to");
  static_assert(!std::is_convertible_v<std::vector<Token>, Buffer>, "a temporary would be gone");
  // Ranges of ranges are lists of buffers, also if the inner ones are trivially copyable.
  static_assert(!std::is_convertible_v<std::vector<std::span<float>>&, Buffer>);
  static_assert(std::is_convertible_v<std::vector<std::span<float>>&, BufferList>);
  static_assert(std::is_convertible_v<std::vector<std::array<float, 3>>&, BufferList>);
  static_assert(std::is_convertible_v<std::vector<std::vector<Token>>&, BufferList>);
}

}  // namespace
}  // namespace cohort::test
