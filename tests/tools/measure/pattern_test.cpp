// SPDX-License-Identifier: BSD-3-Clause
//
// The check is only worth something if it notices: every operation done right by hand passes, and done wrong does not.
#include "measure/pattern.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace {

using namespace cohort::measure;
using cohort::DType;

constexpr int ranks = 4;
constexpr std::size_t count = 1000;

using Floats = std::vector<float>;

/// The inputs of all ranks, each large enough for blocks.
std::vector<Floats> inputs_of(const Command& command) {
  std::vector<Floats> inputs(ranks, Floats(count * ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    Floats output(count * ranks);
    fill_inputs(command, count, ranks, rank, inputs[static_cast<std::size_t>(rank)].data(), output.data());
  }
  return inputs;
}

Command command_of(Operation operation, Reduction reduction = Reduction::sum) {
  return {.operation = operation, .reduction = reduction, .root = 2};
}

float combined(Reduction reduction, const std::vector<Floats>& inputs, std::size_t at) {
  float result = inputs[0][at];
  for (int rank = 1; rank < ranks; ++rank) {
    const float value = inputs[static_cast<std::size_t>(rank)][at];
    switch (reduction) {
      case Reduction::sum:
      case Reduction::avg:
        result += value;
        break;
      case Reduction::prod:
        result *= value;
        break;
      case Reduction::min:
        result = std::min(result, value);
        break;
      case Reduction::max:
        result = std::max(result, value);
        break;
    }
  }
  return reduction == Reduction::avg ? result / ranks : result;
}

class ReductionCheck : public testing::TestWithParam<Reduction> {};

TEST_P(ReductionCheck, AllReduce) {
  const auto command = command_of(Operation::all_reduce, GetParam());
  const auto inputs = inputs_of(command);
  Floats output(count);
  for (std::size_t i = 0; i < count; ++i) output[i] = combined(GetParam(), inputs, i);
  EXPECT_EQ(count_wrong_outputs(command, count, ranks, 1, output.data()), 0U);
  output[17] += 1;
  output[999] += 1;
  EXPECT_EQ(count_wrong_outputs(command, count, ranks, 1, output.data()), 2U);
}

TEST_P(ReductionCheck, ReduceScatter) {
  const auto command = command_of(Operation::reduce_scatter, GetParam());
  const auto inputs = inputs_of(command);
  for (int rank = 0; rank < ranks; ++rank) {
    Floats output(count);
    for (std::size_t i = 0; i < count; ++i) {
      output[i] = combined(GetParam(), inputs, static_cast<std::size_t>(rank) * count + i);
    }
    EXPECT_EQ(count_wrong_outputs(command, count, ranks, rank, output.data()), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Bench, ReductionCheck,
                         testing::Values(Reduction::sum, Reduction::prod, Reduction::min, Reduction::max,
                                         Reduction::avg));

TEST(BenchCheck, OnlyTheRootsReduceCounts) {
  const auto command = command_of(Operation::reduce);
  const Floats zeros(count);
  EXPECT_EQ(count_wrong_outputs(command, count, ranks, 0, zeros.data()), 0U);
  EXPECT_GT(count_wrong_outputs(command, count, ranks, command.root, zeros.data()), count / 2);
}

TEST(BenchCheck, BroadcastGivesTheRootsValues) {
  const auto command = command_of(Operation::broadcast);
  const auto inputs = inputs_of(command);
  EXPECT_EQ(count_wrong_outputs(command, count, ranks, 0, inputs[2].data()), 0U);
  EXPECT_GT(count_wrong_outputs(command, count, ranks, 0, inputs[1].data()), 0U);
}

TEST(BenchCheck, AllGatherKeepsTheOrderOfRanks) {
  const auto command = command_of(Operation::all_gather);
  const auto inputs = inputs_of(command);
  Floats output(count * ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::copy_n(inputs[rank].begin(), count, output.begin() + static_cast<std::ptrdiff_t>(rank * count));
  }
  EXPECT_EQ(count_wrong_outputs(command, count, ranks, 3, output.data()), 0U);
  std::swap_ranges(output.begin(), output.begin() + count, output.begin() + count);
  EXPECT_GT(count_wrong_outputs(command, count, ranks, 3, output.data()), count) << "two blocks in each other's place";
}

TEST(BenchCheck, AllToAllTransposesTheBlocks) {
  const auto command = command_of(Operation::all_to_all);
  const auto inputs = inputs_of(command);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Floats output(count * ranks);
    for (std::size_t source = 0; source < ranks; ++source) {
      std::memcpy(&output[source * count], &inputs[source][rank * count], count * sizeof(float));
    }
    EXPECT_EQ(count_wrong_outputs(command, count, ranks, static_cast<int>(rank), output.data()), 0U);
    EXPECT_GT(count_wrong_outputs(command, count, ranks, static_cast<int>(rank), inputs[rank].data()), 0U);
  }
}

TEST(BenchCheck, ShiftedDataIsNoticed) {
  const auto command = command_of(Operation::broadcast);
  auto inputs = inputs_of(command);
  for (const std::ptrdiff_t shift : {1, 4, 16, 64, 256, 512}) {
    auto shifted = inputs[2];
    std::rotate(shifted.begin(), shifted.begin() + shift, shifted.begin() + count);
    EXPECT_GT(count_wrong_outputs(command, count, ranks, 0, shifted.data()), count / 2) << shift;
  }
}

TEST(BenchCheck, HalfPrecisionHasTheRightBits) {
  auto command = command_of(Operation::broadcast);
  std::vector<std::uint16_t> values(count);
  const std::vector<std::uint16_t> zeros(count);
  command.dtype = DType::f16;
  Pattern::of_input(command, ranks, 0, 0).fill(values.data(), count);
  EXPECT_EQ(values[0], 0x0000);  // 0
  EXPECT_EQ(values[1], 0x4700);  // 7
  EXPECT_EQ(values[2], 0x4b00);  // 14
  command.dtype = DType::bf16;
  Pattern::of_input(command, ranks, 0, 0).fill(values.data(), count);
  EXPECT_EQ(values[1], 0x40e0);  // 7
  EXPECT_EQ(values[2], 0x4160);  // 14
}

}  // namespace
