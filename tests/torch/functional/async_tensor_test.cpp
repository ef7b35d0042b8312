// SPDX-License-Identifier: BSD-3-Clause
//
// Results in flight: what waits and what does not. Rank 1 joins a collective when rank 0 tells it to, so that a view
// that waited would not return.
#include "torch/functional/async_tensor.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <cohort/torch/functional.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <functional>
#include <future>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "torch/compat/optional_tensor.h"
#include "torch/functional/functional_ranks.h"
#include "torch/functional/work_registry.h"

namespace cohort::functional {
namespace {

using test::with_named_threads;

bool is_in_flight(const at::Tensor& tensor) {
  const auto* const impl = find_async(tensor);
  return impl != nullptr && !impl->result()->is_done();
}

/// Rank 0 gets the sum, [3, 6, 9, 12] as doubles, while it is in flight; `land` lets it arrive.
void with_result_in_flight(const std::function<void(at::Tensor sum, const std::function<void()>& land)>& body) {
  std::promise<void> landing;
  with_named_threads(2, [&](const ProcessGroupPtr& group) {
    const auto mine = (group->rank() + 1) * at::arange(1, 5, at::kDouble);
    if (group->rank() == 1) {
      landing.get_future().wait_for(test::patient);
      EXPECT_TRUE(all_reduce(mine, "sum", group).equal(3 * at::arange(1, 5, at::kDouble)));
      return;
    }
    bool has_landed = false;
    const auto land = [&] {
      if (!has_landed) landing.set_value();
      has_landed = true;
    };
    body(all_reduce(mine, "sum", group), land);
    land();
  });
}

const at::Tensor& expected() {
  static const auto sum = 3 * at::arange(1, 5, at::kDouble);
  return sum;
}

TEST(AsyncTensors, DoNotWaitForViewsAndMetadata) {
  with_result_in_flight([](const at::Tensor& sum, const auto& land) {
    ASSERT_TRUE(is_in_flight(sum));
    EXPECT_EQ(sum.sizes(), at::IntArrayRef({4}));
    EXPECT_EQ(sum.scalar_type(), at::kDouble);
    EXPECT_TRUE(sum.is_contiguous());
    EXPECT_FALSE(sum.requires_grad());
    const std::vector<at::Tensor> views{
        sum.view({2, 2}),
        sum.view({2, 2}).t(),
        sum.view({2, 2}).transpose(0, 1),
        sum.view({2, 2}).permute({1, 0}),
        sum.narrow(0, 1, 2),
        sum.slice(0, 1, 3),
        sum.select(0, 3),
        sum.unsqueeze(0),
        sum.unsqueeze(0).squeeze(0),
        sum.unsqueeze(0).expand({3, 4}),
        sum.detach(),
        sum.alias(),
        sum.as_strided({2}, {2}),
        sum.unfold(0, 2, 1),
        sum.view({2, 2}).diagonal(),
        sum.reshape({2, 2}),
        sum.flatten(),
        at::view_as_complex(sum.view({2, 2})),
        sum.split(3)[1],
        sum.split_with_sizes({1, 3})[1],
        sum.chunk(2)[1],
        sum.unbind()[2],
    };
    for (std::size_t i = 0; i < views.size(); ++i) EXPECT_TRUE(is_in_flight(views[i])) << "view " << i;
    EXPECT_TRUE(WorkRegistry::instance().contains(find_async(sum)->plain_in_flight()));
    land();
    EXPECT_TRUE(views[1].equal(expected().view({2, 2}).t()));
    for (std::size_t i = 0; i < views.size(); ++i) EXPECT_FALSE(is_in_flight(views[i])) << "view " << i;
    EXPECT_FALSE(WorkRegistry::instance().contains(find_async(sum)->plain_in_flight()));
    EXPECT_TRUE(views[4].equal(expected().narrow(0, 1, 2)));
    EXPECT_TRUE(views[18].equal(expected().narrow(0, 3, 1)));
    EXPECT_TRUE(views[9].equal(expected().expand({3, 4})));
  });
}

/// Each of these is the first use of a result.
struct FirstUse {
  const char* name;
  void (*use)(const at::Tensor& sum);
  double sum_after = 30;

  friend void PrintTo(const FirstUse& use, std::ostream* out) { *out << use.name; }
};

class FirstUses : public ::testing::TestWithParam<FirstUse> {};
INSTANTIATE_TEST_SUITE_P(
    AsyncTensors, FirstUses,
    ::testing::Values(
        FirstUse{"Addition", [](const at::Tensor& sum) { EXPECT_TRUE((sum + 1).equal(expected() + 1)); }},
        FirstUse{"Item", [](const at::Tensor& sum) { EXPECT_EQ(sum.select(0, 2).item<double>(), 9.0); }},
        FirstUse{"Printing",
                 [](const at::Tensor& sum) {
                   std::ostringstream text;
                   text << sum;
                   EXPECT_THAT(text.str(), ::testing::HasSubstr("12"));
                 }},
        FirstUse{"DataPointer", [](const at::Tensor& sum) { EXPECT_EQ(sum.data_ptr<double>()[3], 12.0); }},
        FirstUse{"Accessor", [](const at::Tensor& sum) { EXPECT_EQ((sum.accessor<double, 1>()[1]), 6.0); }},
        FirstUse{"Conversion",
                 [](const at::Tensor& sum) { EXPECT_TRUE(sum.to(at::kFloat).equal(expected().to(at::kFloat))); }},
        FirstUse{"ListOfTensors",
                 [](const at::Tensor& sum) {
                   EXPECT_TRUE(at::cat({expected(), sum}).equal(at::cat({expected(), expected()})));
                 }},
        FirstUse{"CopyIntoPlain",
                 [](const at::Tensor& sum) { EXPECT_TRUE(at::zeros({4}, at::kDouble).copy_(sum).equal(expected())); }},
        FirstUse{"Writing", [](const at::Tensor& sum) { EXPECT_TRUE(sum.add_(1).equal(expected() + 1)); }, 34},
        FirstUse{"ChangingSizes",
                 [](const at::Tensor& sum) {
                   sum.unsqueeze_(0);
                   EXPECT_EQ(sum.sizes(), at::IntArrayRef({1, 4}));
                   EXPECT_TRUE(sum.equal(expected().unsqueeze(0)));
                 }},
        FirstUse{"WaitTensor",
                 [](const at::Tensor& sum) {
                   const auto waited = wait_tensor(sum);
                   EXPECT_EQ(find_async(waited), nullptr);
                   EXPECT_TRUE(waited.equal(expected()));
                 }}),
    [](const auto& each) { return std::string(each.param.name); });

TEST_P(FirstUses, WaitOnce) {
  with_result_in_flight([](const at::Tensor& sum, const auto& land) {
    land();
    GetParam().use(sum);
    EXPECT_FALSE(is_in_flight(sum));
    EXPECT_FALSE(WorkRegistry::instance().contains(find_async(sum)->plain_in_flight()));
    EXPECT_EQ(sum.sum().template item<double>(), GetParam().sum_after);
  });
}

TEST(AsyncTensors, MayBeInListsOfOptionalTensors) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const auto index = all_reduce(at::arange(3), "sum", group);
    ASSERT_NE(find_async(index), nullptr);
    const c10::List<OptionalTensor> indices({OptionalTensor(), OptionalTensor(index)});
    EXPECT_TRUE(at::arange(10).view({2, 5}).index(indices).equal(at::tensor({0, 2, 4, 5, 7, 9}).view({2, 3})));
    EXPECT_NE(find_async(*indices.get(1)), nullptr) << "the caller's list has changed";
  });
}

TEST(AsyncTensors, DoNotWaitForComposedViewsBelowAutograd) {
  with_result_in_flight([](const at::Tensor& sum, const auto& land) {
    {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      EXPECT_TRUE(is_in_flight(sum.narrow(0, 1, 2)));
      EXPECT_TRUE(is_in_flight(sum.view({2, 2}).movedim(0, 1)));
    }
    land();
    EXPECT_TRUE(sum.equal(expected()));
  });
}

TEST(AsyncTensors, WorkInInferenceMode) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    const auto before = all_reduce(at::ones({4}), "sum", group);
    const c10::InferenceMode inference;
    const auto sum = all_reduce(at::ones({4}), "sum", group);
    const auto view = sum.view({2, 2});
    EXPECT_NE(find_async(view), nullptr);
    EXPECT_TRUE((view + before.view({2, 2})).equal(at::full({2, 2}, 4.0)));
    sum.add_(1);
    EXPECT_TRUE(sum.contiguous().to(at::kFloat).equal(at::full({4}, 3.0)));
  });
}

TEST(AsyncTensors, AreSavedForBackward) {
  with_result_in_flight([](const at::Tensor& sum, const auto& land) {
    auto weight = at::ones({2, 2}, at::kDouble).requires_grad_();
    land();
    auto loss = (weight * sum.view({2, 2})).sum() + (weight.view(-1) * sum).sum();
    loss.backward();
    EXPECT_TRUE(weight.grad().equal(2 * expected().view({2, 2})));
  });
}

TEST(AsyncTensors, MayBeUsedByOtherThreads) {
  with_result_in_flight([](const at::Tensor& sum, const auto& land) {
    std::vector<std::thread> users;
    std::atomic<int> right{0};
    for (int i = 0; i < 4; ++i) {
      users.emplace_back([&] { right += (sum.view({2, 2}) + 1).equal(expected().view({2, 2}) + 1) ? 1 : 0; });
    }
    land();
    for (auto& each : users) each.join();
    EXPECT_EQ(right, 4);
  });
}

TEST(AsyncTensors, KeepTheirVersionWithTheirMemory) {
  with_result_in_flight([](at::Tensor sum, const auto& land) {
    land();
    auto weight = at::ones({4}, at::kDouble).requires_grad_();
    const auto loss = (weight * sum).sum();
    sum.add_(1);  // the product has saved it
    EXPECT_THROW(loss.backward(), std::exception);
  });
}

TEST(AsyncTensors, CannotGiveTheirKeyToPlainTensors) {
  with_result_in_flight([](const at::Tensor& sum, const auto& land) {
    land();
    auto plain = at::zeros({4}, at::kDouble);
    plain.set_data(sum);
    EXPECT_ERROR(TypeError, plain + 1, "set_data()");
    auto other = sum.detach();
    other.set_data(at::ones({2}, at::kDouble));  // becomes plain
    EXPECT_TRUE((other + 1).equal(at::full({2}, 2.0, at::kDouble)));
    EXPECT_EQ(other.data_ptr<double>()[1], 1.0);
  });
}

TEST(AsyncTensors, ThrowTheErrorAtEveryUse) {
  std::promise<void> issued;
  with_named_threads(2, [&](const ProcessGroupPtr& group) {
    if (group->rank() == 1) {
      issued.get_future().wait_for(test::patient);
      group->abort("a test");
      return;
    }
    const auto sum = all_reduce(at::ones({4}), "sum", group);
    const auto view = sum.view({2, 2});
    issued.set_value();
    EXPECT_THROW(sum.item<float>(), std::exception);  // four elements: refused before anything waits, or aborted
    EXPECT_THROW(sum + 1, DistributedError);
    EXPECT_THROW(view + 1, DistributedError);
    EXPECT_THROW(sum.data_ptr<float>(), DistributedError);
    EXPECT_THROW(wait_tensor(sum), DistributedError);
    EXPECT_THROW(wait_tensor(view.t()), DistributedError);
    EXPECT_EQ(unwaited_collectives(), 0U);
  });
}

TEST(AsyncTensors, MayBeDroppedUnused) {
  with_named_threads(2, [](const ProcessGroupPtr& group) {
    for (int i = 0; i < 3; ++i) all_reduce(at::ones({4}), "sum", group);
    EXPECT_TRUE(all_reduce(at::ones({4}), "sum", group).equal(at::full({4}, 2.0)));
    group->barrier();
    EXPECT_EQ(unwaited_collectives(), 0U);
  });
}

}  // namespace
}  // namespace cohort::functional
