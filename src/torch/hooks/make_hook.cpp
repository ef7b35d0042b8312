// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/torch/hooks.h>
#include <cohort/torch/power_sgd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>

namespace cohort {

namespace {

constexpr std::array<std::pair<BuiltinHook, std::string_view>, 10> builtin_hook_names{{
    {BuiltinHook::all_reduce, "all_reduce"},
    {BuiltinHook::fp16_compress, "fp16_compress"},
    {BuiltinHook::bf16_compress, "bf16_compress"},
    {BuiltinHook::quantize_per_tensor, "quantize_per_tensor"},
    {BuiltinHook::quantize_per_channel, "quantize_per_channel"},
    {BuiltinHook::power_sgd, "power_sgd"},
    {BuiltinHook::power_sgd_rank2, "power_sgd_rank2"},
    {BuiltinHook::batched_power_sgd, "batched_power_sgd"},
    {BuiltinHook::batched_power_sgd_rank2, "batched_power_sgd_rank2"},
    {BuiltinHook::noop, "noop"},
}};

std::shared_ptr<PowerSgdState> power_sgd_of_rank(std::int64_t rank, ProcessGroupPtr group) {
  return std::make_shared<PowerSgdState>(
      PowerSgdOptions{.process_group = std::move(group), .matrix_approximation_rank = rank});
}

}  // namespace

std::string_view to_string(BuiltinHook hook) {
  for (const auto& [which, name] : builtin_hook_names) {
    if (which == hook) return name;
  }
  throw ValueError("a BuiltinHook that has no name");
}

BuiltinHook parse_builtin_hook(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string known;
  for (const auto& [which, each] : builtin_hook_names) {
    if (each == lower) return which;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", each);
  }
  throw ValueError(fmt::format("there is no communication hook \"{}\"; there are {}", name, known));
}

CommHook hooks::make_hook(BuiltinHook which, ProcessGroupPtr group) {
  switch (which) {
    case BuiltinHook::all_reduce:
      return all_reduce(std::move(group));
    case BuiltinHook::fp16_compress:
      return fp16_compress(std::move(group));
    case BuiltinHook::bf16_compress:
      return bf16_compress(std::move(group));
    case BuiltinHook::quantize_per_tensor:
      return quantize_per_tensor(std::move(group));
    case BuiltinHook::quantize_per_channel:
      return quantize_per_channel(std::move(group));
    case BuiltinHook::power_sgd:
      return power_sgd(power_sgd_of_rank(1, std::move(group)));
    case BuiltinHook::power_sgd_rank2:
      return power_sgd(power_sgd_of_rank(2, std::move(group)));
    case BuiltinHook::batched_power_sgd:
      return batched_power_sgd(power_sgd_of_rank(1, std::move(group)));
    case BuiltinHook::batched_power_sgd_rank2:
      return batched_power_sgd(power_sgd_of_rank(2, std::move(group)));
    case BuiltinHook::noop:
      return noop();
  }
  throw ValueError("a BuiltinHook that has no name");
}

}  // namespace cohort
