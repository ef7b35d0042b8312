// SPDX-License-Identifier: BSD-3-Clause
//
// Which operators are refused, with which arguments, and that the names in the table are those of libtorch.
#include "torch/capture/refusals.h"

#include <ATen/ATen.h>
#include <cohort/torch/capture_error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "torch/capture/graph_values.h"
#include "torch/capture/hidden_reads.h"
#include "torch/compat/features.h"
#include "torch/compat/optional_tensor.h"

namespace cohort::test {
namespace {

using recording::HiddenReads;
using recording::RefusedOperator;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

c10::OperatorHandle operator_named(const std::string& name, const std::string& overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
}

const recording::Refusal* refusal_of_call(const std::string& name, const std::string& overload,
                                          torch::jit::Stack stack) {
  return recording::refusal_of(operator_named(name, overload), stack);
}

c10::List<OptionalTensor> indices(const std::vector<at::Tensor>& tensors) {
  c10::List<OptionalTensor> list;
  for (const auto& each : tensors) list.push_back(if_defined(each));
  return list;
}

std::string full_name(const RefusedOperator& each) {
  return std::string(each.name) + "." + std::string(each.overload.value_or("*"));
}

TEST(RefusedOperators, AreOperatorsOfLibtorch) {
  const auto registered = c10::Dispatcher::singleton().getAllOpNames();
  std::set<std::string> seen;
  for (const auto& each : recording::refused_operators()) {
    EXPECT_TRUE(seen.insert(full_name(each)).second) << full_name(each) << " is in the table twice";
    const bool exists = std::any_of(registered.begin(), registered.end(), [&](const c10::OperatorName& name) {
      return name.name == each.name && (!each.overload || *each.overload == name.overload_name);
    });
    // A newer libtorch has all of them, as far as its modules are loaded.
    EXPECT_TRUE(exists || each.is_newer) << full_name(each) << " is not an operator";
#if !COHORT_TORCH_HAS_C10D_BACKEND
    EXPECT_FALSE(exists && each.is_newer) << full_name(each) << " is not newer than this libtorch";
#endif
  }
}

TEST(RefusedOperators, SayWhyAndWhatToDoInstead) {
  for (const auto& each : recording::refused_operators()) {
    ASSERT_NE(each.refusal, nullptr);
    EXPECT_FALSE(each.refusal->explanation.empty()) << each.name;
    EXPECT_FALSE(each.refusal->hints.empty()) << each.name;
    EXPECT_THAT(each.refusal->hints, Each(testing::ResultOf([](auto hint) { return hint.back(); }, '.')));
  }
}

TEST(RefusedOperators, LeaveOthersAlone) {
  const auto x = at::ones({2, 2});
  EXPECT_EQ(refusal_of_call("aten::mm", "", {x, x}), nullptr);
  EXPECT_EQ(refusal_of_call("aten::where", "self", {x > 0, x, x}), nullptr);
  EXPECT_EQ(refusal_of_call("aten::tensor_split", "sections", {x, 2, 0}), nullptr);
}

TEST(RefusedOperators, ReadForTheHost) {
  const auto x = at::ones({});
  const auto* const item = refusal_of_call("aten::_local_scalar_dense", "", {x});
  ASSERT_NE(item, nullptr);
  EXPECT_EQ(item->reason, CaptureRefusal::host_read);
  EXPECT_NE(refusal_of_call("aten::equal", "", {x, at::ones({})}), nullptr);
  EXPECT_EQ(refusal_of_call("aten::equal", "", {x, x}), nullptr) << "no element decides";
  EXPECT_EQ(refusal_of_call("aten::equal", "", {x, at::ones({2})}), nullptr) << "no element decides";
  EXPECT_NE(refusal_of_call("aten::where", "", {x}), nullptr);
  EXPECT_NE(refusal_of_call("aten::nonzero", "out", {x, x}), nullptr);
}

TEST(RefusedOperators, IndexByMasksAndNotByNumbers) {
  const auto x = at::ones({4, 3});
  const auto rows = at::zeros({4}, at::kLong);
  const auto mask = rows == 0;
  EXPECT_EQ(refusal_of_call("aten::index", "Tensor", {x, indices({rows})}), nullptr);
  EXPECT_EQ(refusal_of_call("aten::index", "Tensor", {x, indices({at::Tensor(), at::zeros({2}, at::kLong)})}), nullptr);
  EXPECT_NE(refusal_of_call("aten::index", "Tensor", {x, indices({mask})}), nullptr);
  EXPECT_NE(refusal_of_call("aten::index", "Tensor", {x, indices({mask.to(at::kByte)})}), nullptr);
  EXPECT_NE(refusal_of_call("aten::index", "Tensor", {x, indices({at::Tensor(), at::ones({3}, at::kBool)})}), nullptr);
}

TEST(RefusedOperators, WriteAsManyValuesAsAMaskSelects) {
  const auto x = at::ones({4, 3});
  const auto rows = at::zeros({4}, at::kLong);
  const auto mask = rows == 0;
  const auto write = [&](const at::Tensor& by, const at::Tensor& values) {
    return refusal_of_call("aten::index_put_", "", {x, indices({by}), values, false});
  };
  EXPECT_EQ(write(rows, at::ones({4, 3})), nullptr);
  EXPECT_NE(write(mask, at::ones({4, 3})), nullptr);
  EXPECT_NE(write(mask, at::ones({4, 1})), nullptr);
  EXPECT_EQ(write(mask, at::ones({})), nullptr);
  EXPECT_EQ(write(mask, at::ones({3})), nullptr) << "a row for each selected one, however many";
  EXPECT_EQ(write(mask, at::ones({1, 3})), nullptr);
  EXPECT_NE(write(x > 0, at::ones({12})), nullptr);
  EXPECT_EQ(write(x > 0, at::ones({1})), nullptr);
}

TEST(RefusedOperators, DependOnTheirArguments) {
  const auto x = at::ones({4}, at::kLong);
  EXPECT_NE(refusal_of_call("aten::repeat_interleave", "Tensor", {x, c10::IValue()}), nullptr);
  EXPECT_EQ(refusal_of_call("aten::repeat_interleave", "Tensor", {x, 4}), nullptr);
  EXPECT_NE(refusal_of_call("aten::one_hot", "", {x, -1}), nullptr);
  EXPECT_EQ(refusal_of_call("aten::one_hot", "", {x, 5}), nullptr);
  const auto sizes = [](std::vector<std::int64_t> list) { return c10::IValue(std::move(list)); };
  EXPECT_NE(refusal_of_call("aten::resize_", "", {x, sizes({2, 2}), c10::IValue()}), nullptr);
  EXPECT_EQ(refusal_of_call("aten::resize_", "", {x, sizes({4}), c10::IValue()}), nullptr);
}

TEST(RefusedOperators, LookAtTheirOwnArgumentsAlone) {
  const auto x = at::ones({4});
  const auto mask = x > 0;
  // Below them on the stack may be anything.
  EXPECT_EQ(refusal_of_call("aten::index", "Tensor", {indices({mask}), x, indices({at::zeros({1}, at::kLong)})}),
            nullptr);
}

TEST(RefusedOperators, GiveACompleteError) {
  const auto x = at::ones({8, 4});
  const torch::jit::Stack stack{x, indices({at::Tensor(), at::ones({4}, at::kBool)})};
  const auto op = operator_named("aten::index", "Tensor");
  const auto* const refusal = recording::refusal_of(op, stack);
  ASSERT_NE(refusal, nullptr);
  const auto error = recording::error_of(*refusal, recording::call_text(op, stack));
  EXPECT_STREQ(
      error.what(),
      "The step cannot be captured because of aten::index.Tensor(f32[8, 4], [none, bool[4]]) (host_read).\n"
      "The size of its result depends on the elements of a tensor, and a replay has the sizes of the recording.\n"
      "Choose with torch::where(mask, x, y) or x * mask, which keep the size.\n"
      "Or select before the step, and pass the result as an argument: each size has a recording of its own.");
}

TEST(CallText, ShowsSparseTensors) {
  const torch::jit::Stack stack{at::ones({2, 3}).to_sparse()};
  EXPECT_EQ(recording::call_text(operator_named("aten::nonzero"), stack), "aten::nonzero(f32[2, 3])");
}

TEST(CallText, ShowsNumbersAndCutsLongLists) {
  const torch::jit::Stack stack{at::ones({2}), c10::IValue(std::vector<std::int64_t>(100, 1)), c10::IValue()};
  const auto text = recording::call_text(operator_named("aten::resize_"), stack);
  EXPECT_THAT(text, HasSubstr("aten::resize_(f32[2], [1, 1, 1"));
  EXPECT_THAT(text, HasSubstr("... (300 characters), none)"));
}

TEST(HiddenReads, NoticeLengthsThatBecomeSizes) {
  const HiddenReads reads;
  at::tensor_split(at::ones({6}), 2);
  EXPECT_EQ(reads.first(), nullptr);
  at::tensor_split(at::ones({6}), at::full({1}, 2, at::kLong));
  ASSERT_NE(reads.first(), nullptr);
  EXPECT_EQ(reads.first()->name, "aten::tensor_split");
}

TEST(HiddenReads, NoticeTheFirstOfThisThreadWhileTheyExist) {
  const auto probabilities = at::ones({4, 1, 3}).log_softmax(2);
  const auto targets = at::ones({1, 2}, at::kLong);
  const auto lengths = [](std::int64_t length) { return at::full({1}, length, at::kLong); };
  {
    const HiddenReads reads;
    std::thread([] { at::tensor_split(at::ones({6}), at::full({1}, 2, at::kLong)); }).join();
    EXPECT_EQ(reads.first(), nullptr);
    at::ctc_loss(probabilities, targets, at::IntArrayRef({4}), at::IntArrayRef({2}));
    EXPECT_EQ(reads.first(), nullptr) << "numbers of the host are no secret";
    {
      const HiddenReads inner;
      at::ctc_loss(probabilities, targets, lengths(4), lengths(2));
      ASSERT_NE(inner.first(), nullptr);
      EXPECT_EQ(inner.first()->name, "aten::ctc_loss");
    }
    EXPECT_EQ(reads.first(), nullptr);
  }
  const HiddenReads reads;
  const auto packed = at::_pack_padded_sequence(at::ones({2, 1, 3}), lengths(2), false);
  at::_pad_packed_sequence(std::get<0>(packed), std::get<1>(packed), false, 0, 2);
  ASSERT_NE(reads.first(), nullptr);
  EXPECT_EQ(reads.first()->name, "aten::_pad_packed_sequence");
}

TEST(GraphValues, AreMadeFromTensors) {
  const auto tensor = at::ones({2, 3}, at::kLong).t();
  const auto value = recording::graph_value_of(tensor, GraphValue::Origin::constant, "w");
  EXPECT_EQ(value, (GraphValue{.origin = GraphValue::Origin::constant,
                               .name = "w",
                               .sizes = {3, 2},
                               .strides = {1, 3},
                               .dtype = "i64",
                               .element_bytes = 8,
                               .device = "cpu"}));
  EXPECT_EQ(recording::dtype_name(at::kQInt8), "qint8");
  EXPECT_EQ(recording::dtype_name(at::kComplexHalf), "complexhalf");
}

TEST(CaptureErrors, SayWhatWhyAndWhatToDo) {
  const CaptureError error(CaptureRefusal::host_read, "aten::item(f32[])", "the host reads a tensor's value",
                           {"Return the tensor from the step!", "torch::where() chooses without reading"});
  EXPECT_STREQ(error.what(),
               "The step cannot be captured because of aten::item(f32[]) (host_read).\n"
               "The host reads a tensor's value.\n"
               "Return the tensor from the step!\n"
               "torch::where() chooses without reading.");
  EXPECT_EQ(error.reason(), CaptureRefusal::host_read);
  EXPECT_EQ(error.refused(), "aten::item(f32[])");
  EXPECT_EQ(error.explanation(), "the host reads a tensor's value");
  EXPECT_THAT(error.hints(), ElementsAre("Return the tensor from the step!", "torch::where() chooses without reading"));
  EXPECT_EQ(error.kind(), ErrorKind::error);
}

TEST(CaptureErrors, HaveANameForEachReason) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(CaptureRefusal::different_ranks); ++i) {
    names.insert(to_string(static_cast<CaptureRefusal>(i)));
  }
  EXPECT_EQ(names.size(), 7U);
  EXPECT_FALSE(names.contains("unknown"));
}

}  // namespace
}  // namespace cohort::test
