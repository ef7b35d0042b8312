// SPDX-License-Identifier: BSD-3-Clause
//
// Hooks that average, compress and quantise: their formulas on small gradients.
#include <cohort/current_group.h>
#include <cohort/torch/hooks.h>

#include <cmath>
#include <mutex>

#include "torch/hook_buckets.h"

namespace cohort::test {
namespace {

// --- simple ones -----------------------------------------------------------------------------------------------------

TEST(CommHooks, AllreduceAveragesInPlace) {
  with_torch_threads(3, [](const ProcessGroupPtr& group) {
    HookBucket bucket({random({5}, seed_of(group->rank()))});
    const auto result = bucket.through(hooks::all_reduce(group));
    EXPECT_TRUE(result.is_same(bucket.buffer));
    expect_close(result, mean_of_random(3, {5}));
  });
}

TEST(CommHooks, SparseGradientsAreAveragedAsTheyAre) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    for (const auto& hook : {hooks::all_reduce(group), hooks::fp16_compress(group), hooks::quantize_per_tensor(group),
                             hooks::fp16_compress(hooks::all_reduce(group))}) {
      const auto sparse = at::sparse_coo_tensor(at::full({1, 1}, group->rank(), at::kLong), at::ones({1, 2}), {3, 2});
      GradBucket bucket(0, 1, sparse, {sparse}, {});
      const auto result = hook(bucket).value(patient);
      EXPECT_TRUE(at::equal(result.to_dense(), at::tensor({0.5F, 0.5F, 0.5F, 0.5F, 0.F, 0.F}).view({3, 2})));
    }
  });
}

TEST(CommHooks, HalvesAreDividedAfterTheCastAndCopiedBack) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto check = [&](const CommHook& hook, at::ScalarType type) {
      HookBucket bucket({random({7}, seed_of(group->rank()), at::kFloat)});
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
    HookBucket near_the_limit({at::tensor({60000.F, 70000.F})});
    const auto result = near_the_limit.through(hooks::fp16_compress(group));
    EXPECT_NEAR(result[0].item<float>(), 60000.F, 32.F);
    EXPECT_TRUE(std::isinf(result[1].item<float>()));
    HookBucket same({at::tensor({60000.F, 70000.F})});
    EXPECT_NEAR(same.through(hooks::bf16_compress(group))[1].item<float>(), 70000.F, 300.F);
  });
}

TEST(CommHooks, ComplexGradientsAreCompressedAsPairs) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto pairs = at::tensor({1.0F, 2.0F, 3.0F, 4.0F}).mul(group->rank() + 1).view({2, 2});
    HookBucket bucket({at::view_as_complex(pairs)});
    const auto result = bucket.through(hooks::fp16_compress(group));
    EXPECT_TRUE(at::equal(at::view_as_real(result), at::tensor({1.5F, 3.0F, 4.5F, 6.0F}).view({2, 2})));
    EXPECT_ERROR(TypeError, bucket.through(hooks::quantize_per_tensor(group)), "quantize_per_tensor");
  });
}

TEST(CommHooks, WrappersShowHalvesInsideAndKeepThePrecisionOutside) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const auto inner = hooks::all_reduce(group);
    HookBucket bucket(
        {random({2, 3}, seed_of(group->rank()), at::kFloat), at::full({2}, group->rank() + 1.0, at::kFloat)});
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

    HookBucket half({at::full({2}, group->rank() + 1.0, at::kFloat)});
    EXPECT_TRUE(at::equal(half.through(hooks::fp16_compress(hooks::all_reduce(group))), at::full({2}, 1.5F)));
    EXPECT_EQ(hook_name(hooks::fp16_compress(hooks::noop())), "fp16_compress(noop)");
    EXPECT_ERROR(ValueError, hooks::fp16_compress(CommHook()), "empty");
    const auto shortens = [](GradBucket& b) { return completed_future(b.buffer().narrow(0, 0, 1)); };
    EXPECT_ERROR(ValueError, half.through(hooks::fp16_compress(CommHook(shortens))), "1 elements back");
  });
}

TEST(CommHooks, NoopKeepsWhatEachRankHas) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    HookBucket bucket({at::full({3}, group->rank() + 1.0)});
    const auto result = bucket.through(hooks::noop());
    EXPECT_TRUE(result.is_same(bucket.buffer));
    EXPECT_TRUE(at::equal(result, at::full({3}, group->rank() + 1.0)));
    EXPECT_EQ(group->sequence_number(), 0U);
  });
}

TEST(CommHooks, HaveNamesAndTakeTheCurrentGroup) {
  EXPECT_ERROR(Error, hooks::all_reduce(), "all_reduce");
  EXPECT_ERROR(Error, hooks::make_hook(BuiltinHook::power_sgd), "PowerSgdState");
  EXPECT_EQ(hook_name([](GradBucket& bucket) { return completed_future(bucket.buffer()); }), "custom");
  EXPECT_EQ(parse_builtin_hook("FP16_COMPRESS"), BuiltinHook::fp16_compress);
  EXPECT_ERROR(ValueError, parse_builtin_hook("fp8"), "batched_power_sgd_rank2");
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    const ProcessGroupGuard scope(group);
    for (const auto which :
         {BuiltinHook::all_reduce, BuiltinHook::fp16_compress, BuiltinHook::bf16_compress,
          BuiltinHook::quantize_per_tensor, BuiltinHook::quantize_per_channel, BuiltinHook::power_sgd,
          BuiltinHook::power_sgd_rank2, BuiltinHook::batched_power_sgd, BuiltinHook::batched_power_sgd_rank2}) {
      EXPECT_EQ(parse_builtin_hook(to_string(which)), which);
      const auto hook = hooks::make_hook(which);
      EXPECT_THAT(std::string(to_string(which)), ::testing::HasSubstr(hook_name(hook)));
      HookBucket bucket({at::full({4}, group->rank() * 2.0, at::kFloat)});
      expect_close(bucket.through(hook), at::ones({4}), 1e-2);
    }
    EXPECT_EQ(hook_name(hooks::make_hook(BuiltinHook::noop)), "noop");
  });
}

// --- quantisation ----------------------------------------------------------------------------------------------------

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
        HookBucket bucket({random({size}, seed_of(group->rank()), at::kFloat)});
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
      HookBucket bucket({random({size}, seed_of(group->rank()), at::kFloat)});
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
    HookBucket one({gradient});
    EXPECT_EQ(one.through(hooks::quantize_per_tensor(group))[0].item<float>(), 0.F);  // far below a step of 1000 / 255
    HookBucket chunks({gradient});
    expect_close(chunks.through(hooks::quantize_per_channel(group)), gradient, 1e-6);
    EXPECT_ERROR(ValueError, hooks::quantize_per_channel(group, 0), "at least 1");
  });
}

TEST(QuantizationHooks, ZerosStayAndWhatIsNotFiniteShows) {
  with_torch_threads(2, [](const ProcessGroupPtr& group) {
    HookBucket zeros({at::zeros({5})});
    EXPECT_TRUE(at::equal(zeros.through(hooks::quantize_per_tensor(group)), at::zeros({5})));
    HookBucket some({at::tensor({0.F, -3.F, 1.F})});
    EXPECT_EQ(some.through(hooks::quantize_per_tensor(group))[0].item<float>(), 0.F);
    for (const float only : {-5.3F, 5.3F}) {  // the range has 0 in it all the same
      HookBucket same({at::full({4}, only)});
      expect_close(same.through(hooks::quantize_per_tensor(group)), at::full({4}, only), 1e-6);
    }
    for (const auto bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      HookBucket bucket({at::tensor({1.F, group->rank() == 0 ? bad : 2.F})});
      EXPECT_FALSE(std::isfinite(bucket.through(hooks::quantize_per_tensor(group)).sum().item<float>()));
    }
    HookBucket doubles({at::full({3}, 2.0, at::kDouble)});
    EXPECT_EQ(doubles.through(hooks::quantize_per_channel(group)).scalar_type(), at::kDouble);
    HookBucket nothing({at::empty({0})});
    EXPECT_EQ(nothing.through(hooks::quantize_per_tensor(group)).numel(), 0);
  });
}

}  // namespace
}  // namespace cohort::test
