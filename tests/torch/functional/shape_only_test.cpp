// SPDX-License-Identifier: BSD-3-Clause
//
// Random calls of every operator, with tensors that have memory and with tensors on the meta device: the results have
// the same sizes, strides and dtypes, or both calls throw.
#include <ATen/ATen.h>
#include <cohort/torch/functional.h>

#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "torch/functional/functional_ranks.h"
#include "torch/functional/issuing_group.h"
#include "torch/functional/operators.h"

namespace cohort::functional {
namespace {

using test::with_named_threads;

/// The same on all ranks, for the same seed.
class Chance {
 public:
  explicit Chance(unsigned seed) : engine_(seed) {}
  std::int64_t below(std::int64_t bound) { return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(engine_); }

 private:
  std::mt19937 engine_;
};

at::Tensor random_tensor(Chance& chance, std::int64_t ranks) {
  static constexpr std::array dtypes{at::kFloat, at::kDouble, at::kLong, at::kHalf, at::kByte};
  std::vector<std::int64_t> sizes;
  for (auto dims = chance.below(5); dims > 0; --dims)
    sizes.push_back(chance.below(4) * (chance.below(2) == 0 ? ranks : 1));
  auto tensor = at::ones(sizes, dtypes.at(static_cast<std::size_t>(chance.below(dtypes.size()))));
  switch (chance.below(5)) {
    case 0:
      return tensor.dim() >= 2 ? tensor.transpose(0, -1) : tensor;
    case 1:
      return tensor.dim() == 4 ? tensor.contiguous(at::MemoryFormat::ChannelsLast) : tensor;
    case 2:
      return tensor.dim() >= 1 && tensor.size(-1) > 1 ? tensor.narrow(-1, 1, tensor.size(-1) - 1) : tensor;
    case 3:
      return tensor.dim() >= 1 && tensor.size(0) > 0 ? tensor.narrow(0, 0, 1).expand_as(tensor) : tensor;
    default:
      return tensor;
  }
}

at::Tensor shape_of(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

using Call = std::function<Tensors(const Tensors&)>;

/// Sizes, strides and dtypes of the results, or the name of the error.
std::string outcome(const Call& call, const Tensors& inputs) {
  std::ostringstream text;
  try {
    for (const auto& result : call(inputs)) {
      text << result.sizes() << " " << result.strides() << " " << result.scalar_type() << "; ";
    }
  } catch (const Error& e) {
    text << "error: " << e.message();
  }
  return text.str();
}

struct NamedCall {
  const char* name;
  Call call;
};

/// Every operator, with arguments by chance.
std::vector<NamedCall> calls_of(Chance& chance, const ProcessGroupPtr& group, const Tensors& inputs) {
  const auto id = group->id();
  const auto ranks = group->size();
  const auto dim = chance.below(3);
  const auto other = chance.below(3);
  std::vector<std::int64_t> splits(static_cast<std::size_t>(ranks),
                                   inputs[0].dim() == 0 ? 0 : inputs[0].size(0) / ranks);
  return {
      {"all_reduce", [=](const Tensors& x) { return Tensors{ops::all_reduce(x[0], "sum", id)}; }},
      {"all_reduce_", [=](const Tensors& x) { return Tensors{ops::all_reduce_(x[0].clone(), "sum", id)}; }},
      {"all_reduce_coalesced", [=](const Tensors& x) { return ops::all_reduce_coalesced(x, "sum", id); }},
      {"all_reduce_coalesced_",
       [=](const Tensors& x) {
         return ops::all_reduce_coalesced_(Tensors{x[0].clone(), x[1].clone()}, "sum", id);
       }},
      {"all_gather_into_tensor",
       [=](const Tensors& x) { return Tensors{ops::all_gather_into_tensor(x[0], ranks, id)}; }},
      {"all_gather_into_tensor_out",
       [=](const Tensors& x) {
         const auto out = at::empty({ranks * 2, 3}, x[0].options());
         return Tensors{ops::all_gather_into_tensor_out(x[0], ranks, id, out)};
       }},
      {"all_gather_into_tensor_coalesced",
       [=](const Tensors& x) { return ops::all_gather_into_tensor_coalesced(x, ranks, id); }},
      {"reduce_scatter_tensor",
       [=](const Tensors& x) { return Tensors{ops::reduce_scatter_tensor(x[0], "sum", ranks, id)}; }},
      {"reduce_scatter_tensor_coalesced",
       [=](const Tensors& x) { return ops::reduce_scatter_tensor_coalesced(x, "sum", ranks, id); }},
      {"all_to_all_single",
       [=](const Tensors& x) { return Tensors{ops::all_to_all_single(x[0], splits, splits, id)}; }},
      {"broadcast", [=](const Tensors& x) { return Tensors{ops::broadcast(x[0], 0, id)}; }},
      {"broadcast_", [=](const Tensors& x) { return Tensors{ops::broadcast_(x[0].clone(), 0, id)}; }},
      {"shard_dim_alltoall",
       [=](const Tensors& x) { return Tensors{ops::shard_dim_alltoall(x[0], dim, other, ranks, id)}; }},
      {"wait_tensor", [](const Tensors& x) { return Tensors{ops::wait_tensor(x[0])}; }},
      {"all_gather_tensor", [=](const Tensors& x) { return Tensors{all_gather_tensor(x[0], dim, group)}; }},
      {"reduce_scatter_tensor of a dimension",
       [=](const Tensors& x) { return Tensors{reduce_scatter_tensor(x[0], "sum", dim, group)}; }},
      {"permute_tensor",
       [=](const Tensors& x) {
         return Tensors{permute_tensor(x[0], std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 0), group)};
       }},
  };
}

class ShapeOnlyOperators : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShapeOnlyOperators, ::testing::Values(1, 2, 3));

TEST_P(ShapeOnlyOperators, AgreeWithReal) {
  with_named_threads(GetParam(), [](const ProcessGroupPtr& group) {
    std::size_t succeeded = 0;
    for (unsigned seed = 0; seed < 60; ++seed) {
      Chance chance(seed);
      const auto first = random_tensor(chance, group->size());
      const Tensors inputs{first, random_tensor(chance, group->size()).to(first.scalar_type())};
      const Tensors shapes{shape_of(inputs[0]), shape_of(inputs[1])};
      for (const auto& [name, call] : calls_of(chance, group, inputs)) {
        const IssuingGroup blocking(group, {.is_blocking = true});
        const auto real = outcome(call, inputs);
        EXPECT_EQ(real, outcome(call, shapes))
            << name << ", seed " << seed << ", sizes " << inputs[0].sizes() << ", strides " << inputs[0].strides();
        if (real.find("error") == std::string::npos) ++succeeded;
      }
    }
    EXPECT_GT(succeeded, 400U) << "most calls must have succeeded for the comparison to mean anything";
  });
}

}  // namespace
}  // namespace cohort::functional
