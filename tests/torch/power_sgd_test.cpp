// SPDX-License-Identifier: BSD-3-Clause
//
// PowerSGD and its batched form.
#include <cohort/torch/hooks.h>
#include <cohort/torch/power_sgd.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "torch/hook_buckets.h"
#include "torch/hooks/orthogonalize.h"
#include "torch/hooks/power_sgd_memory.h"

namespace cohort::test {
namespace {

std::shared_ptr<PowerSgdState> power(PowerSgdOptions options) {
  return std::make_shared<PowerSgdState>(std::move(options));
}
/// Without error feedback and warm start compression may begin at once.
PowerSgdOptions at_once(const ProcessGroupPtr& group, std::int64_t rank = 1) {
  return {.process_group = group,
          .matrix_approximation_rank = rank,
          .start_power_sgd_iter = 0,
          .use_error_feedback = false,
          .warm_start = false};
}
/// All ranks' gradients have the same columns' space, so the sum is of this rank too.
at::Tensor low_rank(std::int64_t n, std::int64_t m, std::int64_t r, int owner, std::uint64_t seed = 40) {
  return random({n, r}, seed).matmul(random({r, m}, seed + 1 + static_cast<std::uint64_t>(owner)));
}

TEST(PowerSgd, RefusesABadStartAndBadNumbers) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto make = [&](PowerSgdOptions options) {
      options.process_group = group;
      PowerSgdState state(options);
    };
    EXPECT_ERROR(ValueError, make({.start_power_sgd_iter = 1}), "start_power_sgd_iter is 1");
    EXPECT_ERROR(ValueError, make({.start_power_sgd_iter = 1, .use_error_feedback = false}), "above 1");
    EXPECT_ERROR(ValueError, make({.start_power_sgd_iter = 0, .warm_start = false}), "above 1");
    make({.start_power_sgd_iter = 1, .use_error_feedback = false, .warm_start = false});
    make({.start_power_sgd_iter = 2});
    EXPECT_ERROR(ValueError, make({.matrix_approximation_rank = 0}), "matrix_approximation_rank is 0");
    EXPECT_ERROR(ValueError, make({.min_compression_rate = 0}), "above 0");
    EXPECT_ERROR(ValueError, make({.orthogonalization_epsilon = -1}), "not be negative");
    EXPECT_ERROR(ValueError, hooks::power_sgd(nullptr), "not null");
    const PowerSgdState state({.process_group = group});
    EXPECT_EQ(state.options().matrix_approximation_rank, 1);
    EXPECT_EQ(state.options().start_power_sgd_iter, 1000);
    EXPECT_EQ(state.options().min_compression_rate, 2);
    EXPECT_TRUE(state.options().use_error_feedback && state.options().warm_start);
  });
}

TEST(PowerSgd, AveragesUntilItStartsAndCountsLastBuckets) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto state = power({.process_group = group, .start_power_sgd_iter = 2});
    const auto hook = hooks::power_sgd(state);
    for (std::uint64_t step = 0; step < 2; ++step) {
      for (std::size_t index = 0; index < 3; ++index) {
        EXPECT_EQ(state->iteration(), static_cast<std::int64_t>(step));
        HookBucket bucket({random({16, 16}, seed_of(group->rank(), step))});
        expect_close(bucket.through(hook, index, 3), mean_of_random(2, {16, 16}, step).view(-1));
      }
      EXPECT_EQ(state->iteration(), static_cast<std::int64_t>(step) + 1);
    }
    EXPECT_EQ(state->compression_stats().numel_after, 0);
    EXPECT_EQ(state->compression_stats().compression_rate(), 0);
    HookBucket bucket({random({16, 16}, seed_of(group->rank(), 2))});
    const auto result = bucket.through(hook, 0, 1);
    EXPECT_FALSE(at::allclose(result, mean_of_random(2, {16, 16}, 2).view(-1), 1e-2, 1e-2));
    EXPECT_EQ(at::linalg_matrix_rank(result.view({16, 16})).item<std::int64_t>(), 1);
  });
}

TEST(PowerSgd, IsExactOnLowRankMatrices) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    for (const std::int64_t r : {1, 2, 3, 4}) {  // Gram–Schmidt, and QR from 3 on
      const auto hook = hooks::power_sgd(power(at_once(group, r)));
      // A matrix, a convolution's gradient, a bias and a scalar: the last two are too small to compress.
      const auto rank = group->rank();
      HookBucket bucket({low_rank(40, 30, r, rank), low_rank(32, 27, r, rank, 70).view({32, 3, 3, 3}),
                         random({40}, seed_of(rank)), random({}, seed_of(rank))});
      bucket.through(hook);
      auto matrix = at::zeros({40, 30}, at::kDouble);
      auto filter = at::zeros({32, 27}, at::kDouble);
      for (int each = 0; each < 3; ++each) {
        matrix += low_rank(40, 30, r, each) / 3;
        filter += low_rank(32, 27, r, each, 70) / 3;
      }
      expect_close(bucket.views[0], matrix, 1e-8);
      expect_close(bucket.views[1], filter.view({32, 3, 3, 3}), 1e-8);
      expect_close(bucket.views[2], mean_of_random(3, {40}));
      expect_close(bucket.views[3], mean_of_random(3, {}));
    }
  });
}

TEST(PowerSgd, FollowsItsFormula) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    // Two steps with a warm start and error feedback, after two of warm-up; here written out for one matrix.
    const auto state = power({.process_group = group, .start_power_sgd_iter = 2});
    const auto hook = hooks::power_sgd(state);
    at::Tensor errors[2] = {at::zeros({12, 9}, at::kDouble), at::zeros({12, 9}, at::kDouble)};
    at::Tensor q;
    for (std::uint64_t step = 0; step < 5; ++step) {
      HookBucket bucket({random({12, 9}, seed_of(group->rank(), step))});
      bucket.through(hook);
      if (step < 2) continue;
      if (step == 2) {
        // The first Q is random: taken as it is. It must be the same everywhere.
        q = PowerSgdMemory::of(*state, 0).q.view({9, 1}).clone();
        for (int rank = 0; rank < 2; ++rank) {
          errors[rank] = random({12, 9}, seed_of(rank, step)) - bucket.views[0];
        }
        const auto all = all_gather_async(*group, q).value(patient);
        EXPECT_TRUE(at::equal(all[0], all[1]));
        continue;
      }
      q = q / q.norm();
      at::Tensor inputs[2];
      auto p = at::zeros({12, 1}, at::kDouble);
      for (int rank = 0; rank < 2; ++rank) {
        inputs[rank] = random({12, 9}, seed_of(rank, step)) + errors[rank];
        p += inputs[rank].matmul(q);
      }
      p = p / p.norm();
      q = (inputs[0] + inputs[1]).t().matmul(p) / 2;
      const auto expected = p.matmul(q.t());
      expect_close(bucket.views[0], expected, 1e-9);
      for (int rank = 0; rank < 2; ++rank) errors[rank] = inputs[rank] - expected;
      expect_close(PowerSgdMemory::of(*state, 0).error.view({12, 9}), errors[group->rank()], 1e-9);
    }
    EXPECT_EQ(state->compression_stats().numel_before, 3 * 108);
    EXPECT_EQ(state->compression_stats().numel_after, 3 * 21);
    EXPECT_NEAR(state->compression_stats().compression_rate(), 108.0 / 21, 1e-12);
  });
}

TEST(PowerSgd, ErrorFeedbackLosesNothingInTheLongRun) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    // The same gradient over and over: with feedback and a warm start the sum of results follows the sum of inputs, so
    // the mean result comes near the gradient; without feedback it stays as far away as rank 1 is.
    const auto distance_after = [&](bool feedback, bool batched) {
      const auto state = power({.process_group = group, .start_power_sgd_iter = 2, .use_error_feedback = feedback});
      const auto hook = batched ? hooks::batched_power_sgd(state) : hooks::power_sgd(state);
      const auto expected = mean_of_random(2, {8, 8});
      auto sum = at::zeros({8, 8}, at::kDouble);
      const int steps = 300;
      for (int step = -2; step < steps; ++step) {
        HookBucket bucket({random({8, 8}, seed_of(group->rank()))});
        const auto result = bucket.through(hook);
        if (step >= 0) sum += result.view({8, 8});
      }
      return ((sum / steps - expected).norm() / expected.norm()).item<double>();
    };
    for (const bool batched : {false, true}) {
      EXPECT_LT(distance_after(true, batched), 0.1);
      EXPECT_GT(distance_after(false, batched), 0.5);
    }
  });
}

TEST(PowerSgd, WarmStartFindsTheBestApproximation) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    // For a gradient that stays the same, the warm-started factors become the leading singular vectors (the power
    // method); from a random Q at each step they do not.
    const auto expected = mean_of_random(2, {20, 15});
    const auto singular = at::linalg_svdvals(expected);
    const auto best = (singular.square().sum() - singular[0].square()).sqrt().item<double>();
    const auto distance = [&](bool warm) {
      const auto state =
          power({.process_group = group, .start_power_sgd_iter = 2, .use_error_feedback = false, .warm_start = warm});
      const auto hook = hooks::power_sgd(state);
      double last = 0;
      for (int step = 0; step < 150; ++step) {
        HookBucket bucket({random({20, 15}, seed_of(group->rank()))});
        last = (bucket.through(hook).view({20, 15}) - expected).norm().item<double>();
      }
      EXPECT_EQ(PowerSgdMemory::of(*state, 0).q.defined(), warm);
      return last;
    };
    EXPECT_NEAR(distance(true), best, 1e-3 * best);
    EXPECT_GT(distance(false), 1.01 * best);
  });
}

TEST(PowerSgd, CompressesOnlyWhereThatPays) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    // 8 x 8 at rank 2: (8 + 8) * 2 * rate < 64 holds for rates below 2 only.
    const auto result_at = [&](double rate) {
      auto options = at_once(group, 2);
      options.min_compression_rate = rate;
      HookBucket bucket({random({8, 8}, seed_of(group->rank()))});
      return bucket.through(hooks::power_sgd(power(options))).view({8, 8}).clone();
    };
    expect_close(result_at(2), mean_of_random(2, {8, 8}));
    EXPECT_EQ(at::linalg_matrix_rank(result_at(1.9)).item<std::int64_t>(), 2);
  });
}

TEST(PowerSgd, StackingEqualShapesChangesNothing) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto run = [&](bool stacked) {
      const auto state = power({.process_group = group,
                                .matrix_approximation_rank = 3,
                                .start_power_sgd_iter = 2,
                                .batch_tensors_with_same_shape = stacked});
      const auto hook = hooks::power_sgd(state);
      std::vector<at::Tensor> results;
      for (std::uint64_t step = 0; step < 4; ++step) {
        // The columns span all 3 dimensions, so the result is exact whatever Q was drawn.
        const auto seed = 40 + 10 * step;
        HookBucket bucket({low_rank(20, 20, 3, group->rank(), seed), low_rank(30, 20, 3, group->rank(), seed),
                           low_rank(20, 20, 3, group->rank(), seed + 5), random({4}, seed)});
        results.push_back(bucket.through(hook).clone());
      }
      EXPECT_EQ(state->compression_stats().numel_after, 2 * (2 * 40 * 3 + 50 * 3 + 4));
      return at::stack(results);
    };
    expect_close(run(true), run(false), 1e-6);
  });
}

TEST(PowerSgd, TakesGradientsInOtherMemoryOrders) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    // A channels-last convolution and a transposed matrix, as views of the bucket.
    const auto buffer = at::zeros({16 * 12 + 20 * 30}, at::kDouble);
    const auto filter = buffer.narrow(0, 0, 192).as_strided({16, 3, 2, 2}, {12, 1, 6, 3});
    const auto matrix = buffer.as_strided({20, 30}, {1, 20}, 192);
    filter.copy_(low_rank(16, 12, 1, group->rank()).view({16, 3, 2, 2}));
    matrix.copy_(low_rank(20, 30, 1, group->rank()));
    GradBucket bucket(0, 1, buffer, {filter, matrix}, {});
    const auto hook = hooks::power_sgd(power(at_once(group)));
    EXPECT_TRUE(hook(bucket).value(patient).is_same(buffer));
    expect_close(filter, (low_rank(16, 12, 1, 0) + low_rank(16, 12, 1, 1)).div(2).view({16, 3, 2, 2}), 1e-9);
    expect_close(matrix, (low_rank(20, 30, 1, 0) + low_rank(20, 30, 1, 1)).div(2), 1e-9);
  });
}

TEST(PowerSgd, WorksInHalves) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    HookBucket bucket(
        {low_rank(20, 30, 1, group->rank()).to(at::kFloat), at::full({2}, group->rank() * 1.0, at::kFloat)});
    bucket.through(hooks::fp16_compress(hooks::power_sgd(power(at_once(group)))));
    expect_close(bucket.views[0], (low_rank(20, 30, 1, 0) + low_rank(20, 30, 1, 1)).div(2), 3e-2);
    expect_close(bucket.views[1], at::full({2}, 0.5));
  });
}

// A parameter that is not used at first, and one of which other columns are used from some step on, as an embedding's.
TEST(PowerSgd, GradientsThatBeginWithZerosAreSentOnceTheyAreThere) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const double epsilon : {0.0, 1e-8}) {
      for (const std::int64_t r : {1, 3}) {  // Gram–Schmidt, and QR for floats
        for (const auto type : {at::kFloat, at::kBFloat16}) {
          for (const bool batched : {false, true}) {
            const auto state = power({.process_group = group,
                                      .matrix_approximation_rank = r,
                                      .start_power_sgd_iter = 2,
                                      .orthogonalization_epsilon = epsilon});
            const auto hook = batched ? hooks::batched_power_sgd(state) : hooks::power_sgd(state);
            const auto step = [&](std::int64_t first_column) {
              auto gradient = at::zeros({20, 20}, type);
              // Neither in the first rows, which QR would begin with.
              if (first_column >= 0) gradient.narrow(0, 10, 10).narrow(1, first_column, 5).fill_(group->rank() + 1);
              HookBucket bucket({gradient});
              return bucket.through(hook).view({20, 20}).clone();
            };
            const auto expect_sent = [&](std::int64_t first_column) {
              auto expected = at::zeros({20, 20});
              expected.narrow(0, 10, 10).narrow(1, first_column, 5).fill_(1.5);
              const auto result = step(first_column).to(at::kFloat);
              EXPECT_TRUE(at::allclose(result, expected, 0.05, 0.05))
                  << epsilon << " " << r << " " << type << " " << batched << "\n"
                  << result;
            };
            for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(step(-1), at::zeros({20, 20}, type)));
            expect_sent(5);
            for (int i = 0; i < 3; ++i) expect_sent(5);
            for (int i = 0; i < 3; ++i) step(-1);
            // All that was left out is made up for, in some steps.
            auto sum = at::zeros({20, 20});
            for (int i = 0; i < 40; ++i) sum += step(i < 20 ? 12 : -1).to(at::kFloat);
            auto expected = at::zeros({20, 20});
            expected.narrow(0, 10, 10).narrow(1, 12, 5).fill_(20 * 1.5);
            EXPECT_TRUE(at::allclose(sum, expected, 0.05, 0.5))
                << epsilon << " " << r << " " << type << " " << batched << "\n"
                << sum;
          }
        }
      }
    }
  });
}

// Two columns for a matrix of rank 1: the second column of P is rounding errors, and must not be the first one again.
TEST(PowerSgd, EqualRowsAreNotSentTwice) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      for (const double epsilon : {0.0, 1e-8}) {
        for (const double size : {1e-6, 1.0, 1e6}) {
          auto options = at_once(group, 2);
          options.random_seed = seed;
          options.orthogonalization_epsilon = epsilon;
          const auto row = [&](int rank) { return random({1, 24}, 7 * seed + seed_of(rank)) * size; };
          HookBucket bucket({row(group->rank()).expand({16, 24}).to(at::kFloat)});
          const auto result = bucket.through(hooks::power_sgd(power(options))).view({16, 24});
          const auto expected = ((row(0) + row(1)) / 2).expand({16, 24}).to(at::kFloat);
          const auto difference = ((result - expected).norm() / expected.norm()).item<double>();
          EXPECT_LT(difference, epsilon > 0 && size < 1 ? 0.2 : 1e-4) << seed << " " << epsilon << " " << size;
        }
      }
    }
  });
}

TEST(PowerSgd, GradientsThatAreNotFiniteAreNotHidden) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      auto gradient = at::ones({16, 16});
      gradient[3][4] = bad;
      HookBucket bucket({gradient});
      EXPECT_TRUE(bucket.through(hooks::power_sgd(power(at_once(group, 2)))).isnan().any().item<bool>());
    }
  });
}

TEST(PowerSgd, ColumnsAreOrthonormalOrZero) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto first = random({50, 1}, 1, type);
    const auto second = random({50, 1}, 2, type);
    const double near = type == at::kFloat ? 1e-5 : 1e-12;
    for (const double size : {1e-30, 1.0, 1e30}) {
      const auto all = at::stack({at::hstack({first, second}), at::hstack({first, 3 * first}),
                                  at::hstack({first, first + near * second}), at::hstack({0 * first, second})})
                           .mul_(size);
      hooks::orthogonalize(all, 0);
      const auto products = at::bmm(all.transpose(1, 2), all);
      const auto expected = at::eye(2, type).expand({4, 2, 2}).clone();
      expected[1][1][1].copy_(products[1][1][1].round());  // by chance what is left is a direction of its own
      expected[3][0][0] = 0;
      EXPECT_TRUE(at::allclose(products, expected, 1e-5, 1e-5)) << size << products;
    }
  }
}

// Each column is divided by its norm plus epsilon, once, after those before it have been taken out of it.
TEST(PowerSgd, AnEpsilonIsAddedToEachNormOnce) {
  const double epsilon = 1e-2;
  const auto given = random({2, 7, 2}, 3).to(at::kDouble);
  auto expected = given.clone();
  for (std::int64_t matrix = 0; matrix < 2; ++matrix) {
    const auto first = expected[matrix].select(1, 0);
    const auto second = expected[matrix].select(1, 1);
    const auto direction = first / first.norm();
    first.div_(first.norm() + epsilon);
    second.sub_(direction.dot(second) * direction);
    second.div_(second.norm() + epsilon);
  }
  const auto ours = given.clone();
  hooks::orthogonalize(ours, epsilon);
  EXPECT_LT((ours - expected).abs().max().item<double>(), 1e-14);
}

TEST(PowerSgd, BucketsThatChangedAreAnError) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto hook = hooks::power_sgd(power({.process_group = group, .start_power_sgd_iter = 2}));
    for (int step = 0; step < 3; ++step) HookBucket({at::ones({8, 8})}).through(hook);
    EXPECT_ERROR(Error, HookBucket({at::ones({9, 9})}).through(hook), "had 64 elements and now has 81");
  });
}

TEST(PowerSgd, StateIsSavedWithoutItsGroup) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto run = [&](const CommHook& hook, std::uint64_t from, std::uint64_t to) {
      at::Tensor last;
      for (auto step = from; step < to; ++step) {
        HookBucket bucket({random({12, 9}, seed_of(group->rank(), step)), random({3}, seed_of(group->rank(), step))});
        last = bucket.through(hook);
      }
      return last;
    };
    for (const bool warm : {true, false}) {
      const auto state = power({.process_group = group,
                                .matrix_approximation_rank = 2,
                                .start_power_sgd_iter = 2,
                                .warm_start = warm,
                                .random_seed = 7});
      run(hooks::power_sgd(state), 0, 4);
      std::stringstream file;
      torch::save(*state, file);
      const auto expected = run(hooks::power_sgd(state), 4, 7);

      const auto restored = power({.process_group = group});
      torch::load(*restored, file);
      EXPECT_EQ(restored->iteration(), 4);
      EXPECT_EQ(restored->options().random_seed, 7U);
      EXPECT_EQ(restored->options().warm_start, warm);
      EXPECT_TRUE(at::equal(run(hooks::power_sgd(restored), 4, 7), expected));  // to the bit
      EXPECT_EQ(restored->compression_stats().numel_after, state->compression_stats().numel_after);
    }
  });
}

TEST(BatchedPowerSgd, IsExactWherePaddedSquaresAreLowRank) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const std::int64_t size : {1, 2, 5, 100, 101, 399, 400}) {
      const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(size))));
      // The whole of a square of rank 1, or, cut off inside its last rows, one of rank 2.
      const auto gradient = [&](int rank) { return low_rank(side, side, 1, rank).view(-1).narrow(0, 0, size); };
      const auto state = power(at_once(group, 2));
      HookBucket bucket({gradient(group->rank())});
      const auto result = bucket.through(hooks::batched_power_sgd(state));
      EXPECT_TRUE(result.is_same(bucket.buffer));
      if (side * side - size < side || side == 1) {
        expect_close(result, (gradient(0) + gradient(1)) / 2, 1e-6);
      }
      EXPECT_EQ(state->compression_stats().numel_before, size);
      EXPECT_EQ(state->compression_stats().numel_after, 2 * side * std::min<std::int64_t>(2, side));
    }
  });
}

TEST(BatchedPowerSgd, ErrorsHaveThePaddedLength) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto state = power({.process_group = group, .start_power_sgd_iter = 2});
    const auto hook = hooks::batched_power_sgd(state);
    auto inputs = at::zeros({30}, at::kDouble);
    auto outputs = at::zeros({30}, at::kDouble);
    for (std::uint64_t step = 0; step < 6; ++step) {
      HookBucket bucket({random({10, 3}, seed_of(group->rank(), step))});
      const auto result = bucket.through(hook);
      if (step < 2) continue;
      inputs += mean_of_random(2, {10, 3}, step).view(-1);
      outputs += result;
    }
    const auto& error = PowerSgdMemory::of(*state, 0).error;
    ASSERT_EQ(error.numel(), 36);
    // What went in came out, or is in the errors.
    const auto errors = all_gather_async(*group, error).value(patient).mean(0).narrow(0, 0, 30);
    expect_close(outputs + errors, inputs, 1e-9);
  });
}

}  // namespace
}  // namespace cohort::test
