// SPDX-License-Identifier: BSD-3-Clause
//
// (GPU) Every operation on a real device, at several world sizes on one GPU: on nccl, and on gloo by way of the host.
#include <cohort/error.h>

#include <algorithm>
#include <functional>

#include "backends/nccl/gpu/gpu_world.h"
#include "backends/nccl/gpu/numbers.h"
#include "support/expect_error.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using Kind = ReduceOp::Kind;

constexpr auto dtypes =
    std::to_array({DType::f16, DType::bf16, DType::f32, DType::f64, DType::i8, DType::u8, DType::i32, DType::i64,
                   DType::u32, DType::u64, DType::boolean, DType::complex64, DType::complex128});
constexpr auto kinds = std::to_array({Kind::sum, Kind::avg, Kind::product, Kind::min, Kind::max});
constexpr auto counts = std::to_array<std::size_t>({0, 1, 3, 1000, 65537});

/// The reduction over the numbers of all ranks at one place.
double reduced(Kind kind, DType dtype, int size, std::size_t place) {
  double result = number(0, place);
  for (int rank = 1; rank < size; ++rank) {
    const double next = number(rank, place);
    if (kind == Kind::product) result *= next;
    if (kind == Kind::min) result = std::min(result, next);
    if (kind == Kind::max) result = std::max(result, next);
    if (kind == Kind::sum || kind == Kind::avg) result += next;
  }
  if (dtype == DType::boolean && (kind == Kind::min || kind == Kind::product)) {
    result = 1;
    for (int rank = 0; rank < size; ++rank) result = number(rank, place) == 0 ? 0 : result;
  }
  return kind == Kind::avg ? result / size : result;
}

std::vector<std::uint8_t> all_reduced(Kind kind, DType dtype, int size, std::size_t count) {
  std::vector<double> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(reduced(kind, dtype, size, i));
  return encode(dtype, values);
}

std::vector<std::uint8_t> mine(DType dtype, const ProcessGroup& group, std::size_t count) {
  return encode(dtype, numbers(group.rank(), count));
}

using Conformance = OnTheGpuOfSize;

TEST_P(Conformance, ReductionsOfEveryType) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    for (const auto dtype : dtypes) {
      for (const auto kind : kinds) {
        if (!is_reducible(dtype, kind)) continue;
        // World sizes are powers of two, so an average is exact.
        const std::size_t count = 1000;
        for (const bool async_op : {false, true}) {
          const DeviceMemory x(mine(dtype, *group, count));
          group->all_reduce(x.buffer(dtype), {.op = kind, .async_op = async_op}).wait();
          EXPECT_EQ(x.bytes(), all_reduced(kind, dtype, group->size(), count)) << to_string(dtype) << to_string(kind);
        }
        const DeviceMemory x(mine(dtype, *group, count));
        const int root = group->size() - 1;
        group->reduce(x.buffer(dtype), {.root = root, .op = kind});
        EXPECT_EQ(x.bytes(),
                  group->rank() == root ? all_reduced(kind, dtype, group->size(), count) : mine(dtype, *group, count));
      }
    }
    for (const auto dtype : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::complex64}) {
      const DeviceMemory x(encode(dtype, {4, 8}));
      group->all_reduce(x.buffer(dtype), {.op = ReduceOp::premul_sum(0.25)});
      EXPECT_EQ(x.bytes(), encode(dtype, {1.0 * group->size(), 2.0 * group->size()})) << to_string(dtype);
    }
    const DeviceMemory shorts(encode(DType::i16, {1}));
    if (group->name() == "nccl") {
      EXPECT_THROW(group->all_reduce(shorts.buffer(DType::i16)), TypeError);
    } else {
      group->all_reduce(shorts.buffer(DType::i16));
      EXPECT_EQ(shorts.bytes(), encode(DType::i16, {1.0 * group->size()}));
    }
  });
}

TEST_P(Conformance, SizesAroundEdges) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const int n = group->size();
    for (const auto count : counts) {
      const DeviceMemory x(mine(DType::f32, *group, count));
      group->all_reduce(x.buffer(DType::f32));
      EXPECT_EQ(x.bytes(), all_reduced(Kind::sum, DType::f32, n, count)) << count;

      const DeviceMemory b(mine(DType::i64, *group, count));
      group->broadcast(b.buffer(DType::i64), {.root = n - 1});
      EXPECT_EQ(b.bytes(), encode(DType::i64, numbers(n - 1, count))) << count;

      const DeviceMemory in(mine(DType::i32, *group, count));
      const DeviceMemory out(std::vector<std::uint8_t>(count * 4 * static_cast<std::size_t>(n)));
      group->all_gather(out.buffer(DType::i32), in.buffer(DType::i32));
      std::vector<double> all;
      for (int rank = 0; rank < n; ++rank) {
        const auto theirs = numbers(rank, count);
        all.insert(all.end(), theirs.begin(), theirs.end());
      }
      EXPECT_EQ(out.bytes(), encode(DType::i32, all)) << count;

      // Every rank contributes the same whole; each gets the sum of its part.
      const DeviceMemory whole(encode(DType::f32, numbers(0, count * static_cast<std::size_t>(n))));
      const DeviceMemory part(std::vector<std::uint8_t>(count * 4));
      group->reduce_scatter(part.buffer(DType::f32), whole.buffer(DType::f32));
      std::vector<double> sums;
      for (std::size_t i = 0; i < count; ++i) {
        sums.push_back(number(0, static_cast<std::size_t>(group->rank()) * count + i) * n);
      }
      EXPECT_EQ(part.bytes(), encode(DType::f32, sums)) << count;

      const DeviceMemory to(encode(DType::i32, numbers(group->rank(), count * static_cast<std::size_t>(n))));
      const DeviceMemory from(std::vector<std::uint8_t>(count * 4 * static_cast<std::size_t>(n)));
      group->all_to_all(from.buffer(DType::i32), to.buffer(DType::i32));
      std::vector<double> blocks;
      for (int rank = 0; rank < n; ++rank) {
        for (std::size_t i = 0; i < count; ++i) {
          blocks.push_back(number(rank, static_cast<std::size_t>(group->rank()) * count + i));
        }
      }
      EXPECT_EQ(from.bytes(), encode(DType::i32, blocks)) << count;
    }
  });
}

TEST_P(Conformance, ListsBatchesAndPeers) {
  with_gpu_group(GetParam(), [](const ProcessGroupPtr& group) {
    const int n = group->size();
    const int me = group->rank();
    const auto of = [](int rank, std::size_t count) { return encode(DType::f32, numbers(rank, count)); };
    const auto sized = [](int rank) { return static_cast<std::size_t>(rank) + 1; };

    std::vector<DeviceMemory> places;
    std::vector<Buffer> outputs;
    for (int rank = 0; rank < n; ++rank) {
      places.emplace_back(std::vector<std::uint8_t>(4 * sized(rank)));
      outputs.push_back(places.back().buffer(DType::f32));
    }
    const DeviceMemory own(of(me, sized(me)));
    group->all_gather(BufferList(outputs), own.buffer(DType::f32));
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(places[static_cast<std::size_t>(rank)].bytes(), of(rank, sized(rank)));
    }

    std::vector<DeviceMemory> equal;
    std::vector<Buffer> equals;
    for (int rank = 0; rank < n; ++rank) {
      equal.emplace_back(of(rank + 10, 5));
      equals.push_back(equal.back().buffer(DType::f32));
    }
    const DeviceMemory piece(std::vector<std::uint8_t>(20));
    group->scatter(piece.buffer(DType::f32), me == 0 ? ConstBufferList(equals) : ConstBufferList());
    EXPECT_EQ(piece.bytes(), of(me + 10, 5));
    const DeviceMemory given(of(me, 5));
    group->gather(me == n - 1 ? BufferList(equals) : BufferList(), given.buffer(DType::f32), {.root = n - 1});
    for (int rank = 0; me == n - 1 && rank < n; ++rank) {
      EXPECT_EQ(equal[static_cast<std::size_t>(rank)].bytes(), of(rank, 5));
    }

    const DeviceMemory a(of(me, 3));
    const DeviceMemory b(of(me, 70000));
    group->all_reduce_coalesced(BufferList{a.buffer(DType::f32), b.buffer(DType::f32)}, {.async_op = true}).wait();
    EXPECT_EQ(a.bytes(), all_reduced(Kind::sum, DType::f32, n, 3));
    EXPECT_EQ(b.bytes(), all_reduced(Kind::sum, DType::f32, n, 70000));

    const DeviceMemory right(of(me, 100));
    const DeviceMemory left(std::vector<std::uint8_t>(400));
    auto batch = group->batch();
    batch.recv(left.buffer(DType::f32), (me + n - 1) % n);
    batch.send(right.buffer(DType::f32), (me + 1) % n);
    batch.run().wait();
    EXPECT_EQ(left.bytes(), of((me + n - 1) % n, 100));

    EXPECT_EQ(group->broadcast_bytes(me == 0 ? "over the device" : ""), "over the device");
    const auto half = group->split_group({0});
    EXPECT_EQ(half != nullptr, me == 0);
    if (half != nullptr) {
      const DeviceMemory x(of(0, 4));
      half->all_reduce(x.buffer(DType::f32));
      EXPECT_EQ(x.bytes(), of(0, 4));
    }
  });
}

constexpr auto sizes = std::to_array({1, 2, 4});

std::vector<GpuRanks> worlds() {
  std::vector<GpuRanks> all;
  for (const auto* const backend : {"nccl", "gloo"}) {
    for (const int size : sizes) all.push_back({.backend = backend, .size = size});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Gpu, Conformance, ::testing::ValuesIn(worlds()),
                         [](const auto& each) { return each.param.backend + std::to_string(each.param.size); });

}  // namespace
}  // namespace cohort::test
