// SPDX-License-Identifier: BSD-3-Clause
//
// Functions whose operators are not recorded, and which every replay calls.
#include <cohort/torch/capture_error.h>

#include <fmt/format.h>

#include <utility>

#include "torch/capture/opaque.h"
#include "torch/capture/recorder.h"
#include "torch/dtensor/impl.h"

namespace cohort::recording {

std::vector<at::Tensor> Recorder::run_opaque(OpaqueCall call, const std::vector<at::Tensor>& inputs) {
  Instruction instruction;
  std::vector<at::Tensor> plain;
  call.inputs = inputs.size();
  for (const auto& each : inputs) plain.push_back(plain_part(each));
  record([&] {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) continue;
      if (dtensor::find_impl(inputs[i]) != nullptr) {
        throw CaptureError(CaptureRefusal::unsupported_call, fmt::format("opaque function \"{}\"", call.name),
                           "an argument is a distributed tensor, which it would not get in a replay",
                           {"Give it to_local()."});
      }
      const auto id = value_of(plain[i], call.name);
      instruction.tensors.push_back({.position = i, .in_list = -1, .value = id});
      instruction.reads.push_back(id);
      instruction.writes.push_back(id);  // for all that is known
    }
  });
  const auto results = call_outside(call, plain);
  record([&] {
    call.returned = classify(results, plain);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (call.returned[i].is_undefined || call.returned[i].input) continue;
      if (!is_plain(results[i]) || dtensor::find_impl(results[i]) != nullptr) {
        throw CaptureError(CaptureRefusal::unsupported_call, fmt::format("opaque function \"{}\"", call.name),
                           "it returned a tensor that is sparse or distributed", {"Return dense tensors."});
      }
      const auto value = add_value(results[i], GraphValue::Origin::result);
      instruction.results.push_back({.position = i, .in_list = -1, .value = value});
    }
    instruction.action = std::move(call);
    add(std::move(instruction));
  });
  return results;
}

}  // namespace cohort::recording
