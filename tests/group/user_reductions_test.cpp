// SPDX-License-Identifier: BSD-3-Clause
//
// Reductions with functions of the program.
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "group/arrangements.h"

namespace cohort::test {
namespace {

/// The largest value and where it is: the usual struct of MPI's MAXLOC.
struct Best {
  float value;
  std::int32_t index;

  friend bool operator==(const Best&, const Best&) = default;
};

/// Count, mean and sum of squared deviations, combined as by Chan, Golub and LeVeque.
struct Moments {
  double count;
  double mean;
  double squares;
};

void add(Moments& so_far, const Moments& next) {
  const auto count = so_far.count + next.count;
  const auto step = next.mean - so_far.mean;
  so_far.mean += step * next.count / count;
  so_far.squares += next.squares + step * step * so_far.count * next.count / count;
  so_far.count = count;
}

/// A 2x2 matrix of integers: multiplying matrices is associative and not commutative.
struct alignas(64) Matrix {
  std::int64_t a, b, c, d;

  friend bool operator==(const Matrix&, const Matrix&) = default;
};

Matrix times(const Matrix& x, const Matrix& y) {
  return {x.a * y.a + x.b * y.c, x.a * y.b + x.b * y.d, x.c * y.a + x.d * y.c, x.c * y.b + x.d * y.d};
}
Matrix matrix(int rank, std::size_t i) {
  return {rank + 1, static_cast<std::int64_t>(i % 5), 1, 0};
}
Matrix product(int ranks, std::size_t i) {
  auto all = matrix(0, i);
  for (int rank = 1; rank < ranks; ++rank) all = times(all, matrix(rank, i));
  return all;
}
std::vector<Matrix> matrices(std::size_t count, const std::function<Matrix(std::size_t)>& each) {
  std::vector<Matrix> all;
  all.reserve(count);
  for (std::size_t i = 0; i < count; ++i) all.push_back(each(i));
  return all;
}

const Reduction<Best>& best() {
  static const Reduction<Best> reduction("best", [](Best& so_far, const Best& next) {
    if (next.value > so_far.value) so_far = next;
  });
  return reduction;
}
const Reduction<Matrix>& multiply() {
  static const Reduction<Matrix> reduction("multiply", [](Matrix& so_far, const Matrix& next) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&so_far) % alignof(Matrix), 0U);
    so_far = times(so_far, next);
  });
  return reduction;
}

class UserReductions : public OnEveryArrangement {
 protected:
  static constexpr std::array<std::size_t, 6> counts = {0, 1, 3, 100, 5001, 40'000};
};

TEST_P(UserReductions, AllReduceFindsTheLargestAndItsPlace) {
  run([](const ProcessGroupPtr& pg) {
    EXPECT_TRUE(pg->capabilities().user_reductions);
    for (const auto count : counts) {
      std::vector<Best> mine;
      std::vector<Best> expected;
      for (std::size_t i = 0; i < count; ++i) {
        // The largest is at rank i % size, and the others have equal values.
        const int winner = static_cast<int>(i) % pg->size();
        mine.push_back({pg->rank() == winner ? 2.0F : 1.0F, pg->rank()});
        expected.push_back({2.0F, winner});
      }
      const auto before = pg->sequence_number();
      const auto work = pg->all_reduce(mine, {.op = best(), .async_op = count % 2 == 1});
      work.wait();
      EXPECT_EQ(mine, expected) << count;
      EXPECT_EQ(pg->sequence_number(), before + 1);
      EXPECT_EQ(work.result().size(), 1U);
    }
  });
}

TEST_P(UserReductions, CombineInRankOrder) {
  run([](const ProcessGroupPtr& pg) {
    const int n = pg->size();
    const auto own = [&](std::size_t i) { return matrix(pg->rank(), i); };
    const auto all = [&](std::size_t i) { return product(n, i); };
    for (const auto count : counts) {
      auto x = matrices(count, own);
      pg->all_reduce(x, {.op = multiply()});
      EXPECT_EQ(x, matrices(count, all)) << count;

      for (int root = 0; root < n; ++root) {
        x = matrices(count, own);
        pg->reduce(x, {.root = root, .op = multiply()});
        EXPECT_EQ(x, pg->rank() == root ? matrices(count, all) : matrices(count, own)) << "others keep theirs";
      }

      const auto input = matrices(count * index(n), own);
      std::vector<Matrix> output(count);
      pg->reduce_scatter(output, input, {.op = multiply()});
      const auto first = count * index(pg->rank());
      EXPECT_EQ(output, matrices(count, [&](std::size_t i) { return all(first + i); })) << count;
    }
    // Rank r gets r elements.
    std::vector<std::vector<Matrix>> inputs;
    for (std::size_t r = 0; r < index(n); ++r) inputs.push_back(matrices(r, own));
    std::vector<Matrix> output(index(pg->rank()));
    pg->reduce_scatter(output, inputs, {.op = multiply()});
    EXPECT_EQ(output, matrices(output.size(), all));
  });
}

TEST_P(UserReductions, CombineStatistics) {
  run([](const ProcessGroupPtr& pg) {
    const Reduction<Moments> moments("moments", add);
    // Rank r has seen the numbers 10 r to 10 r + 9.
    Moments mine{10, 10.0 * pg->rank() + 4.5, 82.5};
    pg->all_reduce(std::span(&mine, 1), {.op = moments});
    const double n = 10.0 * pg->size();
    EXPECT_EQ(mine.count, n);
    EXPECT_NEAR(mine.mean, (n - 1) / 2, 1e-9);
    EXPECT_NEAR(mine.squares / n, (n * n - 1) / 12, 1e-6) << "the variance of 0 to n - 1";
  });
}

TEST_P(UserReductions, OfNumbersByWholeSpans) {
  run([](const ProcessGroupPtr& pg) {
    const Reduction<double> log_sum("log of the sum of exponentials",
                                    [](std::span<double> so_far, std::span<const double> next) {
                                      ASSERT_EQ(so_far.size(), next.size());
                                      for (std::size_t i = 0; i < so_far.size(); ++i) {
                                        const auto most = std::max(so_far[i], next[i]);
                                        const auto least = std::min(so_far[i], next[i]);
                                        so_far[i] = most + std::log1p(std::exp(least - most));
                                      }
                                    });
    std::vector<double> x(1000, 3.0);
    pg->all_reduce(x, {.op = log_sum});
    for (const auto value : x) EXPECT_NEAR(value, 3.0 + std::log(pg->size()), 1e-12);
  });
}

TEST_P(UserReductions, AnExceptionIsAnErrorOnAllRanks) {
  run([](const ProcessGroupPtr& pg) {
    if (pg->size() == 1) return;  // the function is not called
    const int thrower = pg->size() - 1;
    const Reduction<std::int32_t> picky("picky", [&](std::int32_t& so_far, const std::int32_t& next) {
      if (pg->rank() == thrower) throw std::runtime_error("cannot combine " + std::to_string(so_far));
      so_far += next;
    });
    std::vector<std::int32_t> x(100, 7);
    std::vector<std::int32_t> all(100 * index(pg->size()), 7);
    const auto expect_told = [&](const std::function<void()>& call) {
      try {
        call();
        ADD_FAILURE() << "rank " << pg->rank() << " was not told";
      } catch (const DistributedError& e) {
        EXPECT_THAT(e.what(), ::testing::AllOf(::testing::HasSubstr("picky"), ::testing::HasSubstr("cannot combine 7"),
                                               ::testing::HasSubstr("rank " + std::to_string(thrower))));
        EXPECT_EQ(e.context().rank, thrower);
        EXPECT_EQ(e.context().cause != nullptr, pg->rank() == thrower);
      }
    };
    expect_told([&] { pg->all_reduce(x, {.op = picky}); });
    expect_told([&] { pg->reduce(x, {.op = picky, .async_op = true}).wait(); });
    expect_told([&] { pg->reduce_scatter(x, all, {.op = picky}); });
    expect_works(*pg);
  });
}

TEST_P(UserReductions, AreRefusedWhereTheyDoNotFit) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<float> x(6, 1);
    std::vector<Best> bests(3);
    std::vector<Moments> moments(3);
    std::vector<float> all(6 * index(pg->size()));
    const Reduction<float> own("own", [](float& so_far, const float& next) { so_far += next; });
    expect_refused<TypeError>(*pg, "best", [&] { pg->all_reduce(x, {.op = best()}); });
    expect_refused<TypeError>(*pg, "8 bytes", [&] { pg->reduce(moments, {.op = best()}); });
    expect_refused<TypeError>(*pg, "own", [&] { pg->all_reduce(bests, {.op = own}); });
    expect_refused<NotSupportedError>(*pg, "one buffer at a time", [&] {
      pg->all_reduce(BufferList{x, x}, {.op = own});
    });
    expect_refused<NotSupportedError>(*pg, "one buffer at a time",
                                      [&] { pg->all_reduce_coalesced(BufferList{x}, {.op = own}); });
    expect_refused<NotSupportedError>(*pg, "one buffer at a time", [&] {
      pg->reduce_scatter_coalesced(BufferList{x}, ConstBufferList{all}, {.op = own});
    });
    auto batch = pg->batch();
    expect_refused<NotSupportedError>(*pg, "batch", [&] { batch.all_reduce(x, {.op = own}); });
    expect_works(*pg);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, UserReductions, every_arrangement(), arrangement_name);

class UserReductionMismatch : public OnEveryArrangement {};

TEST_P(UserReductionMismatch, EveryRankIsToldOfAnotherNameTypeOrSize) {
  run([](const ProcessGroupPtr& pg) {
    const bool is_last = pg->rank() == pg->size() - 1;
    const auto nothing = [](auto& /*so_far*/, const auto& /*next*/) {};
    const Reduction<float> one("one", nothing);
    const Reduction<float> other("other", nothing);
    const Reduction<Best> of_structs("one", nothing);
    std::vector<float> x(4);
    std::vector<Best> bests(2);
    const auto expect_mismatch = [&](const std::string& text, const std::function<void()>& call) {
      EXPECT_THAT(message_of<MismatchError>(call), ::testing::HasSubstr(text)) << "rank " << pg->rank();
    };
    expect_mismatch("other", [&] { pg->all_reduce(x, {.op = is_last ? other : one}); });
    expect_mismatch("raw",
                    [&] { is_last ? pg->all_reduce(bests, {.op = of_structs}) : pg->all_reduce(x, {.op = one}); });
    expect_mismatch("[3]", [&] { pg->all_reduce(std::span(x).first(is_last ? 3 : 4), {.op = one}); });
    expect_mismatch("root 1", [&] { pg->reduce(x, {.root = is_last ? 1 : 0, .op = one}); });
    expect_works(*pg);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, UserReductionMismatch, arrangements_of_several(), arrangement_name);

TEST(UserReductionOps, AreOpsLikeOthers) {
  const ReduceOp op = best();
  EXPECT_EQ(op.kind(), ReduceOp::Kind::user);
  EXPECT_EQ(to_string(op), "best");
  EXPECT_EQ(op, ReduceOp(best()));
  EXPECT_FALSE(op == ReduceOp(multiply()));
  EXPECT_FALSE(op == ReduceOp::sum());
  EXPECT_ERROR(ValueError, serialize(op), "best");
  EXPECT_ERROR(ValueError, ReduceOp(ReduceOp::Kind::user), "cohort::Reduction<T>");
  EXPECT_ERROR(ValueError, parse_reduce_op("user"), "unknown reduction");
  const auto nothing = [](float& /*so_far*/, const float& /*next*/) {};
  EXPECT_ERROR(ValueError, Reduction<float>("", nothing), "name");
  EXPECT_ERROR(ValueError, Reduction<float>(std::string(101, 'x'), nothing), "100 characters");
  static_assert(!std::is_convertible_v<Reduction<Best>, ReduceOp>, "a temporary would be gone");
}

}  // namespace
}  // namespace cohort::test
