// SPDX-License-Identifier: BSD-3-Clause
//
// Operators that draw random numbers (random_state.h): equal on ranks that hold the same elements, independent on the
// others. Dropout on the CPU is made of these; on CUDA it is native_dropout.
#include <ATen/ATen.h>

#include "torch/dtensor/random_state.h"
#include "torch/dtensor/rule_table.h"
#include "torch/dtensor/rules/common.h"

namespace cohort::dtensor {

namespace {

void check_not_partial(const OpCall& call) {
  for (const auto& each : call.layout().placements) {
    if (each.is_partial()) {
      call.refuse("a Partial tensor has no random values of its own; redistribute() it before");
    }
  }
}

/// In-place operators whose last argument is the generator.
void run_in_place(OpCall& call) {
  check_not_partial(call);
  const auto layout = call.layout_pointer();
  if (takes_part(call)) {
    call.argument(call.arguments() - 1) = next_generator(*layout, call.tensors()[0].impl->local());
  }
  call.localize_as_they_are();
  call.run_local();
  call.wrap_results({}, {});
}

/// rand_like and randn_like, which take no generator.
void run_like(OpCall& call, bool is_normal) {
  check_not_partial(call);
  const auto layout = call.layout_pointer();
  const c10::DimVector sizes(call.tensors()[0].sizes);
  const auto dtype = call.argument(1).toOptional<at::ScalarType>();
  call.localize_as_they_are();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto local = call.argument(0).toTensor();
  auto result = at::empty_like(local, local.options().dtype(dtype.value_or(local.scalar_type())));
  if (takes_part(call)) {
    const auto generator = next_generator(*layout, local);
    is_normal ? result.normal_(0, 1, generator) : result.uniform_(0, 1, generator);
  }
  call.finish({wrap(std::move(result), layout, sizes)});
}

/// native_dropout(input, p, train) -> (output, mask)
void run_native_dropout(OpCall& call) {
  check_not_partial(call);
  const auto layout = call.layout_pointer();
  const c10::DimVector sizes(call.tensors()[0].sizes);
  const auto p = call.argument(1).toDouble();
  const bool is_training = call.argument(2).isNone() || call.argument(2).toBool();
  call.localize_as_they_are();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto local = call.argument(0).toTensor();
  auto mask = at::ones_like(local, local.options().dtype(at::kBool));
  auto output = local.clone();
  if (is_training && takes_part(call)) {
    mask.bernoulli_(1 - p, next_generator(*layout, local));
    output = p == 1 ? at::zeros_like(local) : local * mask * (1 / (1 - p));
  }
  call.finish({wrap(std::move(output), layout, sizes), wrap(std::move(mask), layout, sizes)});
}

}  // namespace

void add_random_rules(RuleTable& table) {
  table.add({"aten::bernoulli_.float", "aten::uniform_", "aten::normal_", "aten::exponential_", "aten::random_",
             "aten::random_.to", "aten::random_.from"},
            "random", run_in_place);
  table.add("aten::rand_like", "random", [](OpCall& call) { run_like(call, false); });
  table.add("aten::randn_like", "random", [](OpCall& call) { run_like(call, true); });
  table.add("aten::native_dropout", "random", run_native_dropout);
}

}  // namespace cohort::dtensor
