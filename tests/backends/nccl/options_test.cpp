// SPDX-License-Identifier: BSD-3-Clause
#include "backends/nccl/options.h"

#include <limits>

#include "backends/nccl/nccl_test.h"
#include "backends/nccl/types.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using nccl::version_of;

class NcclOptions : public NcclTest {};

TEST_F(NcclOptions, ByNameReachTheLibrary) {
  const Options config{{"min_ctas", 2},     {"max_ctas", 8},      {"cga_cluster_size", 4}, {"split_share", 1},
                       {"net_name", "eth"}, {"traffic_class", 3}, {"nvls_ctas", 5}};
  const auto group = alone({{"config", config},
                            {"is_high_priority_stream", true},
                            {"group_name", "tp"},
                            {"global_ranks_in_group", std::vector<std::int64_t>{7}},
                            {"_timeout", 1234ms}});
  const auto given = gpu.last_config();
  EXPECT_EQ(given.min_ctas, 2);
  EXPECT_EQ(given.max_ctas, 8);
  EXPECT_EQ(given.cga_cluster_size, 4);
  EXPECT_EQ(given.split_share, 1);
  EXPECT_EQ(given.traffic_class, 3);
  EXPECT_EQ(given.nvls_ctas, 5);
  EXPECT_EQ(given.cta_policy, nccl::undefined);
  EXPECT_EQ(given.blocking, 0) << "or no deadline would hold";
  EXPECT_EQ(given.magic, 0xcafebeefU);
  EXPECT_EQ(group->group_name(), "tp");
  EXPECT_EQ(group->global_ranks(), std::vector<int>{7});
  EXPECT_EQ(group->timeout(), 1234ms);
  OnDevice<float> x({1});
  group->all_reduce(x.buffer(), {.async_op = true});
  EXPECT_EQ(gpu.count("all_reduce own-5"), 1) << "the stream of high priority";
}

TEST_F(NcclOptions, NobodyKnowsAreRefusedByName) {
  EXPECT_ERROR(KeyError, alone({{"is_high_prority_stream", true}}), "is_high_priority_stream");
  EXPECT_ERROR(KeyError, alone({{"config", Options{{"max_cta", 8}}}}), "max_ctas");
  EXPECT_ERROR(TypeError, alone({{"is_high_priority_stream", 1}}), "boolean");
  EXPECT_ERROR(ValueError, alone({{"config", Options{{"blocking", 1}}}}), "deadline");
  EXPECT_ERROR(ValueError, alone({{"global_ranks_in_group", std::vector<std::int64_t>{1, 2}}}), "2 entries");
}

TEST_F(NcclOptions, DeviceMustBeThere) {
  const GroupMembers members{.store = std::make_shared<HashStore>(), .rank = 0, .size = 1};
  EXPECT_ERROR(ValueError, new_group("fake-nccl", 5s, "cuda:2", {}, members), "cuda:2");
  EXPECT_ERROR(ValueError, new_group("fake-nccl", 5s, "cpu", {}, members), "cuda memory");
  const auto group = new_group("fake-nccl", 5s, "cuda", {}, members);  // the current device
  OnDevice<float> x({1});
  EXPECT_ERROR(ValueError, group->all_reduce(Buffer(x.values().data(), DType::f32, {1}, {}, "cuda:1")), "cuda:1");
}

TEST_F(NcclOptions, ConfigIsAsLongAsTheLibraryKnowsIt) {
  nccl::Config config;
  nccl::fit(config, version_of(2, 18, 1));
  EXPECT_EQ(config.size, 48U);
  EXPECT_EQ(config.version, 21801U);
  nccl::fit(config, version_of(2, 27, 3));
  EXPECT_EQ(config.size, 72U);
  nccl::fit(config, version_of(2, 30));
  EXPECT_EQ(config.size, 72U);
  EXPECT_EQ(config.version, 22700U) << "what is newer we do not fill";
  EXPECT_ERROR(ValueError, nccl::read_options({{"config", Options{{"traffic_class", 1}}}}, version_of(2, 24)),
               "needs NCCL 2.25.0; this is 2.24.0");
}

TEST_F(NcclOptions, LibraryThatIsTooOldIsNamed) {
  auto calls = gpu.engine().calls;
  gpu.version = version_of(2, 17, 1);
  EXPECT_THAT(nccl::check_version(calls), ::testing::HasSubstr("NCCL 2.17.1 was found, which is too old"));
  gpu.version = version_of(2, 18);
  EXPECT_EQ(nccl::check_version(calls), "");
}

TEST_F(NcclOptions, MachineWithoutAGpuSaysWhatItLacks) {
  if (nccl::missing().empty()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(nccl::missing(), ::testing::HasSubstr("install"));
  EXPECT_ERROR(ValueError,
               new_group("nccl", 5s, "cuda:0", {}, {.store = std::make_shared<HashStore>(), .rank = 0, .size = 1}),
               "the backend nccl cannot be used here");
}

TEST_F(NcclOptions, ReductionsThatNcclHas) {
  using nccl::DataType;
  using nccl::RedOp;
  const auto as = [](DType dtype, const ReduceOp& op) { return nccl::reducing(dtype, op); };
  EXPECT_EQ(as(DType::boolean, ReduceOp::sum()).op, RedOp::max);
  EXPECT_EQ(as(DType::boolean, ReduceOp::product()).op, RedOp::min);
  EXPECT_EQ(as(DType::boolean, ReduceOp::sum()).type, DataType::uint8);
  EXPECT_EQ(as(DType::bf16, ReduceOp::avg()).op, RedOp::avg);
  EXPECT_EQ(as(DType::bf16, ReduceOp::avg()).type, DataType::bfloat16);
  EXPECT_EQ(as(DType::complex128, ReduceOp::sum()).type, DataType::float64);
  EXPECT_EQ(as(DType::complex128, ReduceOp::sum()).per_element, 2U);
  EXPECT_EQ(as(DType::i64, ReduceOp::min()).type, DataType::int64);
  EXPECT_EQ(as(DType::u32, ReduceOp::max()).type, DataType::uint32);
  EXPECT_EQ(as(DType::u64, ReduceOp::max()).type, DataType::uint64);

  const auto group = alone();
  OnDevice<std::int16_t> shorts({1});
  OnDevice<std::int32_t> ints({1});
  OnDevice<std::uint16_t> unsigned_shorts({1});
  const Reduction<std::int32_t> own("own", [](std::int32_t&, const std::int32_t&) {});
  EXPECT_ERROR(TypeError, group->all_reduce(shorts.buffer()), "i16");
  EXPECT_ERROR(TypeError, group->all_reduce(unsigned_shorts.buffer()), "u16");
  EXPECT_ERROR(NotSupportedError, group->all_reduce(ints.buffer(), {.op = own}), "host memory");
  EXPECT_FALSE(group->capabilities("cuda").user_reductions);
  EXPECT_ERROR(ValueError, group->all_reduce(ints.buffer(), {.op = ReduceOp::bxor()}), "bitwise");
  EXPECT_EQ(group->sequence_number(), 0U) << "refused before anything happened";
  EXPECT_NO_THROW(group->broadcast(shorts.buffer())) << "moving is not reducing";
}

TEST_F(NcclOptions, FactorsOfPremulSum) {
  const auto half = [](nccl::DataType type, double factor) {
    const auto bytes = nccl::scalar(type, factor);
    return static_cast<int>(bytes[0]) | static_cast<int>(bytes[1]) << 8;
  };
  using nccl::DataType;
  EXPECT_EQ(half(DataType::float16, 1.0), 0x3c00);
  EXPECT_EQ(half(DataType::float16, -0.5), 0xb800);
  EXPECT_EQ(half(DataType::float16, 65520), 0x7c00) << "rounds to infinity";
  EXPECT_EQ(half(DataType::float16, 65504), 0x7bff);
  EXPECT_EQ(half(DataType::float16, 1.0 + 0x1p-11), 0x3c00) << "to even";
  EXPECT_EQ(half(DataType::float16, 1.0 + 3 * 0x1p-11), 0x3c02);
  EXPECT_EQ(half(DataType::float16, 0x1p-24), 0x0001) << "subnormal";
  EXPECT_EQ(half(DataType::float16, 0), 0);
  EXPECT_EQ(half(DataType::float16, std::numeric_limits<double>::infinity()), 0x7c00);
  EXPECT_EQ(half(DataType::bfloat16, 1.5), 0x3fc0);
  EXPECT_EQ(half(DataType::bfloat16, 1.0 / 3), 0x3eab);

  OnDevice<float> x({2, 4});
  alone()->all_reduce(x.buffer(), {.op = ReduceOp::premul_sum(0.25)}).wait(5s);
  EXPECT_EQ(x.values(), (std::vector<float>{0.5, 1}));
  EXPECT_EQ(gpu.count("destroy_op"), 1);
}

}  // namespace
}  // namespace cohort::test
