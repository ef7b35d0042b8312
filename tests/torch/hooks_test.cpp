// SPDX-License-Identifier: BSD-3-Clause
//
// Communication hooks, driven with buckets made here, against formulas on small tensors.
#include <cohort/current_group.h>
#include <cohort/log.h>
#include <cohort/torch/hooks.h>
#include <cohort/torch/post_local_sgd.h>
#include <cohort/torch/power_sgd.h>
#include <torch/torch.h>

#include <cmath>
#include <mutex>
#include <sstream>

#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using Sizes = std::vector<std::int64_t>;

/// A bucket whose gradients are these, in one buffer as the reducer makes it.
struct Bucket {
  at::Tensor buffer;
  std::vector<at::Tensor> views;

  explicit Bucket(const std::vector<at::Tensor>& gradients) {
    std::vector<at::Tensor> rows;
    for (const auto& each : gradients) rows.push_back(each.reshape(-1));
    buffer = at::cat(rows);
    std::int64_t offset = 0;
    for (const auto& each : gradients) {
      views.push_back(buffer.narrow(0, offset, each.numel()).view(each.sizes()));
      offset += each.numel();
    }
  }
  /// What the hook makes of it.
  at::Tensor through(const CommHook& hook, std::size_t index = 0, std::size_t count = 1) {
    GradBucket bucket(index, count, buffer, views, views);
    return hook(bucket).value(patient);
  }
};

at::Tensor random(const Sizes& sizes, std::uint64_t seed, at::ScalarType type = at::kDouble) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble)).to(type);
}
std::uint64_t seed_of(int rank, std::uint64_t step = 0) {
  return static_cast<std::uint64_t>(rank) + 100 * step;
}
/// The mean over ranks of random(sizes, seed_of(rank, step)).
at::Tensor mean_of_random(int ranks, const Sizes& sizes, std::uint64_t step = 0, at::ScalarType type = at::kDouble) {
  auto sum = at::zeros(sizes, type);
  for (int rank = 0; rank < ranks; ++rank) sum += random(sizes, seed_of(rank, step), type);
  return sum / ranks;
}
void expect_close(const at::Tensor& mine, const at::Tensor& expected, double tolerance = 1e-10) {
  ASSERT_EQ(mine.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(mine, expected.to(mine.scalar_type()), tolerance, tolerance)) << mine << "\n" << expected;
}

// ---- simple ones
// -----------------------------------------------------------------------------------------------------

TEST(Hooks, AllreduceAveragesInPlace) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    Bucket bucket({random({5}, seed_of(group->rank()))});
    const auto result = bucket.through(hooks::allreduce(group));
    EXPECT_TRUE(result.is_same(bucket.buffer));
    expect_close(result, mean_of_random(3, {5}));
  });
}

TEST(Hooks, SparseGradientsAreAveragedAsTheyAre) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const auto& hook : {hooks::allreduce(group), hooks::fp16_compress(group), hooks::quantize_per_tensor(group),
                             hooks::fp16_compress(hooks::allreduce(group))}) {
      const auto sparse = at::sparse_coo_tensor(at::full({1, 1}, group->rank(), at::kLong), at::ones({1, 2}), {3, 2});
      GradBucket bucket(0, 1, sparse, {sparse}, {});
      const auto result = hook(bucket).value(patient);
      EXPECT_TRUE(at::equal(result.to_dense(), at::tensor({0.5F, 0.5F, 0.5F, 0.5F, 0.F, 0.F}).view({3, 2})));
    }
  });
}

TEST(Hooks, HalvesAreDividedAfterTheCastAndCopiedBack) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto check = [&](const CommHook& hook, at::ScalarType type) {
      Bucket bucket({random({7}, seed_of(group->rank()), at::kFloat)});
      const auto original = bucket.buffer;
      const auto result = bucket.through(hook);
      EXPECT_TRUE(result.is_same(original));
      EXPECT_EQ(result.scalar_type(), at::kFloat);
      // The formula to the bit: both ranks' halves, divided in halves, added up in float and rounded.
      auto sum = at::zeros({7}, at::kFloat);
      for (int rank = 0; rank < 2; ++rank) {
        sum += random({7}, seed_of(rank), at::kFloat).to(type).div(2).to(at::kFloat);
      }
      EXPECT_TRUE(at::equal(result, sum.to(type).to(at::kFloat)));
    };
    check(hooks::fp16_compress(group), at::kHalf);
    check(hooks::bf16_compress(group), at::kBFloat16);

    // The sum of the halves would overflow, had they not been divided; 70000 overflows in the cast itself.
    Bucket large({at::tensor({60000.F, 70000.F})});
    const auto result = large.through(hooks::fp16_compress(group));
    EXPECT_NEAR(result[0].item<float>(), 60000.F, 32.F);
    EXPECT_TRUE(std::isinf(result[1].item<float>()));
    Bucket same({at::tensor({60000.F, 70000.F})});
    EXPECT_NEAR(same.through(hooks::bf16_compress(group))[1].item<float>(), 70000.F, 300.F);
  });
}

TEST(Hooks, ComplexGradientsAreCompressedAsPairs) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto pairs = at::tensor({1.0F, 2.0F, 3.0F, 4.0F}).mul(group->rank() + 1).view({2, 2});
    Bucket bucket({at::view_as_complex(pairs)});
    const auto result = bucket.through(hooks::fp16_compress(group));
    EXPECT_TRUE(at::equal(at::view_as_real(result), at::tensor({1.5F, 3.0F, 4.5F, 6.0F}).view({2, 2})));
    EXPECT_ERROR(TypeError, bucket.through(hooks::quantize_per_tensor(group)), "quantize_per_tensor");
  });
}

TEST(Hooks, WrappersShowHalvesInsideAndKeepThePrecisionOutside) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto inner = hooks::allreduce(group);
    Bucket bucket({random({2, 3}, seed_of(group->rank()), at::kFloat), at::full({2}, group->rank() + 1.0, at::kFloat)});
    const auto original = bucket.buffer;
    bool seen = false;
    const auto spy = [&](GradBucket& inside) {
      seen = true;
      EXPECT_EQ(inside.buffer().scalar_type(), at::kBFloat16);
      EXPECT_EQ(inside.gradients()[0].scalar_type(), at::kBFloat16);
      EXPECT_EQ(inside.gradients()[0].sizes(), at::IntArrayRef({2, 3}));
      EXPECT_TRUE(inside.gradients()[1].is_alias_of(inside.buffer()));
      return inner(inside);
    };
    const auto result = bucket.through(hooks::bf16_compress(CommHook(spy)));
    EXPECT_TRUE(seen);
    // The buffer DistributedDataParallel knows is the one that has the result, in full precision.
    EXPECT_TRUE(result.is_same(original));
    EXPECT_EQ(result.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(bucket.views[1], at::full({2}, 1.5F)));
    expect_close(bucket.views[0], mean_of_random(2, {2, 3}, 0, at::kFloat), 2e-2);

    Bucket half({at::full({2}, group->rank() + 1.0, at::kFloat)});
    EXPECT_TRUE(at::equal(half.through(hooks::fp16_compress(hooks::allreduce(group))), at::full({2}, 1.5F)));
    EXPECT_EQ(hook_name(hooks::fp16_compress(hooks::noop())), "fp16_compress(noop)");
    EXPECT_ERROR(ValueError, hooks::fp16_compress(CommHook()), "empty");
    const auto shortens = [](GradBucket& b) { return ready(b.buffer().narrow(0, 0, 1)); };
    EXPECT_ERROR(ValueError, half.through(hooks::fp16_compress(CommHook(shortens))), "1 elements back");
  });
}

TEST(Hooks, NoopKeepsWhatEachRankHas) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Bucket bucket({at::full({3}, group->rank() + 1.0)});
    const auto result = bucket.through(hooks::noop());
    EXPECT_TRUE(result.is_same(bucket.buffer));
    EXPECT_TRUE(at::equal(result, at::full({3}, group->rank() + 1.0)));
    EXPECT_EQ(group->sequence_number(), 0U);
  });
}

TEST(Hooks, HaveNamesAndTakeTheCurrentGroup) {
  EXPECT_ERROR(Error, hooks::allreduce(), "allreduce");
  EXPECT_ERROR(Error, hooks::make_hook(BuiltinHook::power_sgd), "PowerSgdState");
  EXPECT_EQ(hook_name([](GradBucket& bucket) { return ready(bucket.buffer()); }), "custom");
  EXPECT_EQ(parse_builtin_hook("FP16_COMPRESS"), BuiltinHook::fp16_compress);
  EXPECT_ERROR(ValueError, parse_builtin_hook("fp8"), "batched_power_sgd_rank2");
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const ProcessGroupGuard scope(group);
    for (const auto which :
         {BuiltinHook::allreduce, BuiltinHook::fp16_compress, BuiltinHook::bf16_compress,
          BuiltinHook::quantize_per_tensor, BuiltinHook::quantize_per_channel, BuiltinHook::power_sgd,
          BuiltinHook::power_sgd_rank2, BuiltinHook::batched_power_sgd, BuiltinHook::batched_power_sgd_rank2}) {
      EXPECT_EQ(parse_builtin_hook(to_string(which)), which);
      const auto hook = hooks::make_hook(which);
      EXPECT_THAT(std::string(to_string(which)), ::testing::HasSubstr(hook_name(hook)));
      Bucket bucket({at::full({4}, group->rank() * 2.0, at::kFloat)});
      expect_close(bucket.through(hook), at::ones({4}), 1e-2);
    }
    EXPECT_EQ(hook_name(hooks::make_hook(BuiltinHook::noop)), "noop");
  });
}

// ---- quantisation
// ----------------------------------------------------------------------------------------------------

/// Half a step of each rank's grid, on average.
double step_of(const at::Tensor& x) {
  return (x.max().clamp_min(0) - x.min().clamp_max(0)).item<double>() / 255;
}

TEST(QuantizationHooks, AreOffByHalfAStepAtMost) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    for (const std::int64_t size : {1, 7, 511, 512, 513, 1024, 1500}) {
      double bound = 0;
      for (int rank = 0; rank < 3; ++rank) bound += step_of(random({size}, seed_of(rank), at::kFloat)) / 2 / 3;
      const auto expected = mean_of_random(3, {size}, 0, at::kFloat);
      for (const auto& hook : {hooks::quantize_per_tensor(group), hooks::quantize_per_channel(group),
                               hooks::quantize_per_channel(group, 100)}) {
        Bucket bucket({random({size}, seed_of(group->rank()), at::kFloat)});
        const auto result = bucket.through(hook);
        EXPECT_TRUE(result.is_same(bucket.buffer));
        // Codes are rounded, and so is the code of zero: half a step each.
        EXPECT_LE((result - expected).abs().max().item<double>(), 2 * bound * 1.001) << size;
      }
    }
  });
}

TEST(QuantizationHooks, AFullLastChunkIsNotFollowedByAnother) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const auto& [size, rows] : {std::pair{1024, 2}, {1025, 3}, {512, 1}, {1, 1}}) {
      std::vector<std::size_t> bytes;
      const auto store = std::make_shared<std::vector<std::size_t>>();
      group->add_pre_hook([store](const HookEvent& event) { store->push_back(event.bytes); });
      Bucket bucket({random({size}, seed_of(group->rank()), at::kFloat)});
      bucket.through(hooks::quantize_per_channel(group));
      ASSERT_EQ(store->size(), 2U);
      EXPECT_EQ((*store)[0], static_cast<std::size_t>(rows) * 8);    // a scale and a zero each
      EXPECT_EQ((*store)[1], static_cast<std::size_t>(rows) * 512);  // a byte for each element
    }
  });
}

TEST(QuantizationHooks, ChunksKeepOutliersApart) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto gradient = at::cat({at::full({512}, 1e-3F), at::full({512}, 1e3F)});
    Bucket one({gradient});
    EXPECT_EQ(one.through(hooks::quantize_per_tensor(group))[0].item<float>(), 0.F);  // far below a step of 1000 / 255
    Bucket chunks({gradient});
    expect_close(chunks.through(hooks::quantize_per_channel(group)), gradient, 1e-6);
    EXPECT_ERROR(ValueError, hooks::quantize_per_channel(group, 0), "at least 1");
  });
}

TEST(QuantizationHooks, ZerosStayAndWhatIsNotFiniteShows) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    Bucket zeros({at::zeros({5})});
    EXPECT_TRUE(at::equal(zeros.through(hooks::quantize_per_tensor(group)), at::zeros({5})));
    Bucket some({at::tensor({0.F, -3.F, 1.F})});
    EXPECT_EQ(some.through(hooks::quantize_per_tensor(group))[0].item<float>(), 0.F);
    for (const auto bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      Bucket bucket({at::tensor({1.F, group->rank() == 0 ? bad : 2.F})});
      EXPECT_FALSE(std::isfinite(bucket.through(hooks::quantize_per_tensor(group)).sum().item<float>()));
    }
    Bucket doubles({at::full({3}, 2.0, at::kDouble)});
    EXPECT_EQ(doubles.through(hooks::quantize_per_channel(group)).scalar_type(), at::kDouble);
    Bucket nothing({at::empty({0})});
    EXPECT_EQ(nothing.through(hooks::quantize_per_tensor(group)).numel(), 0);
  });
}

// ---- PowerSGD
// --------------------------------------------------------------------------------------------------------

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
        Bucket bucket({random({16, 16}, seed_of(group->rank(), step))});
        expect_close(bucket.through(hook, index, 3), mean_of_random(2, {16, 16}, step).view(-1));
      }
      EXPECT_EQ(state->iteration(), static_cast<std::int64_t>(step) + 1);
    }
    EXPECT_EQ(state->compression_stats().numel_after, 0);
    EXPECT_EQ(state->compression_stats().compression_rate(), 0);
    Bucket bucket({random({16, 16}, seed_of(group->rank(), 2))});
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
      Bucket bucket({low_rank(40, 30, r, rank), low_rank(32, 27, r, rank, 70).view({32, 3, 3, 3}),
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
      Bucket bucket({random({12, 9}, seed_of(group->rank(), step))});
      bucket.through(hook);
      if (step < 2) continue;
      if (step == 2) {
        // The first Q is random: taken as it is. It must be the same everywhere.
        q = state->memories().at(0)->q.view({9, 1}).clone();
        for (int rank = 0; rank < 2; ++rank) {
          errors[rank] = random({12, 9}, seed_of(rank, step)) - bucket.views[0];
        }
        const auto all = gathered(*group, q).value(patient);
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
      expect_close(state->memories().at(0)->error.view({12, 9}), errors[group->rank()], 1e-9);
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
        Bucket bucket({random({8, 8}, seed_of(group->rank()))});
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
    // Of a gradient that stays the same the warm-started factors become the leading singular vectors (the power
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
        Bucket bucket({random({20, 15}, seed_of(group->rank()))});
        last = (bucket.through(hook).view({20, 15}) - expected).norm().item<double>();
      }
      EXPECT_EQ(state->memories().at(0)->q.defined(), warm);
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
      Bucket bucket({random({8, 8}, seed_of(group->rank()))});
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
        // Of full column space in 3 dimensions: the result is exact, whatever Q was drawn for which.
        const auto seed = 40 + 10 * step;
        Bucket bucket({low_rank(20, 20, 3, group->rank(), seed), low_rank(30, 20, 3, group->rank(), seed),
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
    Bucket bucket({low_rank(20, 30, 1, group->rank()).to(at::kFloat), at::full({2}, group->rank() * 1.0, at::kFloat)});
    bucket.through(hooks::fp16_compress(hooks::power_sgd(power(at_once(group)))));
    expect_close(bucket.views[0], (low_rank(20, 30, 1, 0) + low_rank(20, 30, 1, 1)).div(2), 3e-2);
    expect_close(bucket.views[1], at::full({2}, 0.5));
  });
}

TEST(PowerSgd, EpsilonSavesGradientsThatAreAllZeros) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto result = [&](double epsilon) {
      auto options = at_once(group);
      options.orthogonalization_epsilon = epsilon;
      Bucket bucket({at::zeros({12, 12})});
      return bucket.through(hooks::power_sgd(power(options)));
    };
    EXPECT_TRUE(at::equal(result(1e-8), at::zeros({144})));
    EXPECT_TRUE(result(0).isnan().all().item<bool>());
  });
}

TEST(PowerSgd, BucketsThatChangedAreAnError) {
  with_torch_threads(1, [](const ProcessGroupPtr& group) {
    const auto hook = hooks::power_sgd(power({.process_group = group, .start_power_sgd_iter = 2}));
    for (int step = 0; step < 3; ++step) Bucket({at::ones({8, 8})}).through(hook);
    EXPECT_ERROR(Error, Bucket({at::ones({9, 9})}).through(hook), "had 64 elements and now has 81");
  });
}

TEST(PowerSgd, StateIsSavedWithoutItsGroup) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto run = [&](const CommHook& hook, std::uint64_t from, std::uint64_t to) {
      at::Tensor last;
      for (auto step = from; step < to; ++step) {
        Bucket bucket({random({12, 9}, seed_of(group->rank(), step)), random({3}, seed_of(group->rank(), step))});
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
      Bucket bucket({gradient(group->rank())});
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
      Bucket bucket({random({10, 3}, seed_of(group->rank(), step))});
      const auto result = bucket.through(hook);
      if (step < 2) continue;
      inputs += mean_of_random(2, {10, 3}, step).view(-1);
      outputs += result;
    }
    const auto& error = state->memories().at(0)->error;
    ASSERT_EQ(error.numel(), 36);
    // What went in came out, or is in the errors.
    const auto errors = gathered(*group, error).value(patient).mean(0).narrow(0, 0, 30);
    expect_close(outputs + errors, inputs, 1e-9);
  });
}

// ---- post-local SGD
// --------------------------------------------------------------------------------------------------

/// Groups of two neighbours.
ProcessGroupPtr pair_of(const ProcessGroupPtr& group) {
  ProcessGroupPtr mine;
  for (int first = 0; first < group->size(); first += 2) {
    if (auto part = group->split_group({first, first + 1})) mine = part;
  }
  return mine;
}
at::Tensor own(const ProcessGroupPtr& group) {
  return at::full({2}, group->rank() + 1.0);
}

TEST(PostLocalSgd, AveragesOverAllThenOverTheSubgroup) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    const auto state = std::make_shared<PostLocalSgdState>(
        PostLocalSgdOptions{.process_group = group, .subgroup = pair_of(group), .start_local_sgd_iter = 2});
    const auto hook = hooks::post_local_sgd(state);
    for (int step = 0; step < 4; ++step) {
      for (std::size_t index = 0; index < 2; ++index) {
        const auto result = Bucket({own(group)}).through(hook, index, 2);
        const double pair = group->rank() < 2 ? 1.5 : 3.5;
        EXPECT_TRUE(at::equal(result, at::full({2}, step < 2 ? 2.5 : pair))) << step;
      }
    }
    EXPECT_EQ(state->iteration(), 4);

    const auto nothing = std::make_shared<PostLocalSgdState>(
        PostLocalSgdOptions{.process_group = group, .start_local_sgd_iter = 0, .post_local_gradient_allreduce = false});
    EXPECT_TRUE(at::equal(Bucket({own(group)}).through(hooks::post_local_sgd(nothing)), own(group)));
    EXPECT_ERROR(ValueError, PostLocalSgdState({.process_group = group, .start_local_sgd_iter = -1}), "-1");
    EXPECT_ERROR(ValueError, hooks::post_local_sgd(nullptr), "not null");
  });
}

TEST(PostLocalSgd, WithoutASubgroupItIsTheHosts) {
  // Threads are on one host.
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto state = std::make_shared<PostLocalSgdState>(PostLocalSgdOptions{.process_group = group});
    EXPECT_TRUE(at::equal(Bucket({own(group)}).through(hooks::post_local_sgd(state)), at::full({2}, 1.5)));
    EXPECT_EQ(state->options().subgroup->size(), 2);
  });
}

TEST(PostLocalSgdProcesses, RanksOfAHostFindEachOther) {
  at::set_num_threads(1);
  with_processes(
      4,
      [](const ProcessGroupPtr& group) {
        const auto state = std::make_shared<PostLocalSgdState>(PostLocalSgdOptions{.process_group = group});
        const auto result = Bucket({own(group)}).through(hooks::post_local_sgd(state));
        EXPECT_TRUE(at::equal(result, at::full({2}, group->rank() < 2 ? 1.5 : 3.5)));
        EXPECT_EQ(state->options().subgroup->size(), 2);
      },
      patient, "shm", /*hosts=*/2);
}

at::Tensor parameter_of(const ProcessGroupPtr& group, double plus = 0) {
  auto parameter = (own(group) + plus).requires_grad_();
  parameter.mutable_grad() = at::zeros({2}, at::kDouble);
  return parameter;
}
/// Which steps averaged something: the value of the first element after each, starting afresh each time.
std::vector<double> averages(ModelAverager& averager, const ProcessGroupPtr& group, int steps) {
  std::vector<double> values;
  for (int step = 0; step < steps; ++step) {
    const auto parameter = parameter_of(group);
    averager.average_parameters({parameter});
    values.push_back(parameter[0].item<double>());
  }
  return values;
}

TEST(ModelAveragers, PeriodicAveragesWhenItIsDue) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    PeriodicModelAverager averager({.process_group = group, .period = 3, .warmup_steps = 2});
    const double mine = group->rank() + 1.0;
    EXPECT_EQ(averages(averager, group, 7), (std::vector<double>{mine, mine, 1.5, mine, mine, 1.5, mine}));
    EXPECT_EQ(averager.step(), 7);
    EXPECT_ERROR(ValueError, PeriodicModelAverager({.process_group = group, .period = 0}), "at least 1");
    EXPECT_ERROR(ValueError, PeriodicModelAverager({.process_group = group, .period = 2, .warmup_steps = -1}), "-1");
  });
}

TEST(ModelAveragers, TakeParametersWithAGradientOfAnyTypeAndOrder) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    PeriodicModelAverager averager({.process_group = group, .period = 2});
    const double mine = group->rank() + 1.0;
    const auto without = at::full({3}, mine).requires_grad_();
    auto floats = at::full({2, 3}, static_cast<float>(mine)).requires_grad_();
    floats.mutable_grad() = at::zeros({2, 3});
    auto image = at::full({1, 2, 3, 4}, mine, at::kDouble).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    image.mutable_grad() = at::zeros_like(image);
    const auto before = group->sequence_number();
    averager.average_parameters({without, floats, parameter_of(group), image});
    EXPECT_EQ(group->sequence_number(), before + 2);  // one for each type
    EXPECT_TRUE(at::equal(without, at::full({3}, mine)));
    EXPECT_TRUE(at::equal(floats, at::full({2, 3}, 1.5F)));
    EXPECT_TRUE(at::equal(image, at::full({1, 2, 3, 4}, 1.5, at::kDouble)));
    EXPECT_TRUE(image.is_leaf() && image.requires_grad());
  });
}

TEST(ModelAveragers, HierarchicalAveragesOverFewOftenAndOverAllSeldom) {
  with_torch_threads(4, [](const ProcessGroupPtr& group) {
    HierarchicalModelAverager averager(
        {.process_group = group, .period_group_sizes = {{2, 2}, {4, 4}}, .warmup_steps = 1});
    const double mine = group->rank() + 1.0;
    const double pair = group->rank() < 2 ? 1.5 : 3.5;
    EXPECT_EQ(averages(averager, group, 8), (std::vector<double>{mine, 2.5, mine, pair, mine, 2.5, mine, pair}));

    const auto make = [&](std::vector<std::pair<std::int64_t, std::int64_t>> levels) {
      HierarchicalModelAverager bad({.process_group = group, .period_group_sizes = std::move(levels)});
    };
    EXPECT_ERROR(ValueError, make({}), "there are none");
    EXPECT_ERROR(ValueError, make({{2, 2}}), "the last size is 2; it must be that of the group, 4");
    EXPECT_ERROR(ValueError, make({{2, 3}, {4, 4}}), "groups of 3");
    EXPECT_ERROR(ValueError, make({{4, 2}, {2, 4}}), "period 2 comes after 4");
    EXPECT_ERROR(ValueError, make({{2, 4}, {4, 4}}), "size 4 comes after 4");
    EXPECT_ERROR(ValueError, make({{0, 4}}), "period 0");
  });
}

/// What was logged at warning level while it lives. One at a time.
class Warnings {
 public:
  Warnings() {
    set_log_sink([this](const LogRecord& record) {
      const std::lock_guard lock(mutex_);
      if (record.level == LogLevel::warn) text_ += std::string(record.message) + "\n";
    });
  }
  ~Warnings() { set_log_sink(nullptr); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

TEST(ModelAveragers, WarnOfAPeriodOfOne) {
  Warnings warnings;
  with_torch_threads(1, [](const ProcessGroupPtr& group) { PeriodicModelAverager averager({.process_group = group}); });
  EXPECT_THAT(warnings.text(), ::testing::HasSubstr("after every step"));
}

TEST(PostLocalSgdOptimizerTest, StepsThenAveragesAndRemembersItsStep) {
  Warnings warnings;
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto averager = [&] {
      return std::make_shared<PeriodicModelAverager>(ModelAveragerOptions{.process_group = group, .period = 3});
    };
    auto parameter = parameter_of(group);
    const auto start = [&](PostLocalSgdOptimizer& optimizer, int steps) {
      for (int step = 0; step < steps; ++step) {
        parameter.mutable_grad() = at::full({2}, group->rank() + 1.0);
        optimizer.step();
      }
    };
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(1.0).momentum(0.5));
    PostLocalSgdOptimizer optimizer(sgd, averager());
    start(optimizer, 1);
    // rank + 1 less a gradient of rank + 1 is 0 everywhere, and so is its average.
    EXPECT_TRUE(at::equal(parameter, at::zeros({2}, at::kDouble)));
    start(optimizer, 1);
    EXPECT_TRUE(at::equal(parameter, at::full({2}, -1.5 * (group->rank() + 1))));  // momentum; on its own
    std::stringstream file;
    torch::save(optimizer, file);
    EXPECT_EQ(optimizer.averager().step(), 2);

    torch::optim::SGD other({parameter}, torch::optim::SGDOptions(1.0).momentum(0.5));
    PostLocalSgdOptimizer restored(other, averager());
    torch::load(restored, file);
    EXPECT_EQ(restored.averager().step(), 2);
    start(restored, 1);
    // Momentum came back too: 0.5 * 1.5 + 1 more of the gradient; not due.
    EXPECT_TRUE(at::equal(parameter, at::full({2}, -3.25 * (group->rank() + 1))));
    start(restored, 1);
    EXPECT_TRUE(at::equal(parameter, at::full({2}, -(3.25 + 1.875) * 1.5)));  // step 3: due
    restored.zero_grad();

    std::stringstream plain;
    torch::save(sgd, plain);
    torch::load(restored, plain);
    EXPECT_EQ(restored.averager().step(), 0);
    EXPECT_ERROR(ValueError, PostLocalSgdOptimizer(sgd, nullptr), "averager");
  });
  EXPECT_THAT(warnings.text(), ::testing::HasSubstr("no step of a model averager"));
}

}  // namespace
}  // namespace cohort::test
