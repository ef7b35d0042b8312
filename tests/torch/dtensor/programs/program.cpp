// SPDX-License-Identifier: BSD-3-Clause
#include "torch/dtensor/programs/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ostream>

namespace cohort::test::programs {

namespace {

std::string as_code(const Placement& placement) {
  if (placement.is_replicate()) return "Replicate()";
  if (placement.is_partial()) {
    return placement == Partial() ? "Partial()" : fmt::format("Partial(\"{}\")", to_string(placement.reduction()));
  }
  if (placement.is_strided_shard()) {
    return fmt::format("StridedShard({}, {})", placement.dim(), placement.split_factor());
  }
  return fmt::format("Shard({})", placement.dim());
}

std::string as_code(const Value& value) {
  auto text = fmt::format("{{.op = \"{}\"", value.op);
  if (!value.arguments.empty()) text += fmt::format(", .arguments = {{{}}}", fmt::join(value.arguments, ", "));
  text += fmt::format(", .numbers = {{{}}}", fmt::join(value.numbers, ", "));
  std::vector<std::string> placements;
  for (const auto& each : value.placements) placements.push_back(as_code(each));
  if (!placements.empty()) text += fmt::format(", .placements = {{{}}}", fmt::join(placements, ", "));
  if (value.below > 0) text += fmt::format(", .below = {}", value.below);
  return text + "}";
}

bool is_valid(const Placements& placements, std::int64_t dims) {
  return std::all_of(placements.begin(), placements.end(),
                     [&](const Placement& each) { return !each.is_shard() || each.dim() < dims; });
}

at::Tensor dense_input(const Value& value, std::size_t number) {
  Random random(static_cast<std::uint32_t>(number) + 17);
  std::int64_t count = 1;
  for (const auto size : value.numbers) count *= size;
  if (value.below > 0) {
    std::vector<std::int64_t> integers(static_cast<std::size_t>(count));
    for (auto& each : integers) each = random() % static_cast<std::uint32_t>(value.below);
    return at::tensor(integers, at::kLong).view(value.numbers);
  }
  std::uniform_real_distribution<double> any(-2, 2);
  std::vector<double> reals(static_cast<std::size_t>(count));
  for (auto& each : reals) each = any(random);
  return at::tensor(reals, at::kDouble).view(value.numbers).requires_grad_();
}

/// Results that are too large or have no value make comparisons pointless.
bool is_useful(const at::Tensor& result) {
  constexpr double largest = 1e4;
  if (result.dim() > 4 || result.numel() > 400) return false;
  if (result.numel() == 0 || !result.is_floating_point()) return true;
  const auto size = result.detach().abs().max().item<double>();
  return std::isfinite(size) && size < largest;
}

}  // namespace

std::string to_string(const Program& program) {
  std::vector<std::string> values;
  for (const auto& each : program.values) values.push_back(as_code(each));
  return fmt::format("{{.shape = {{{}}},\n .values = {{{}}}}}", fmt::join(program.shape, ", "),
                     fmt::join(values, ",\n            "));
}

std::ostream& operator<<(std::ostream& out, const Program& program) {
  return out << to_string(program);
}

const Operator& operator_named(const std::string& name) {
  const auto& all = operators();
  return *std::find_if(all.begin(), all.end(), [&](const Operator& each) { return each.name == name; });
}

at::Tensor dense_value(const Value& value, std::size_t number, const Tensors& earlier) {
  if (value.op == "input") return dense_input(value, number);
  Tensors arguments;
  for (const auto each : value.arguments) arguments.push_back(earlier.at(each));
  if (value.op == "redistribute") {
    if (!is_valid(value.placements, arguments[0].dim())) throw Unfit();
    return arguments[0] * 1;
  }
  at::Tensor result;
  try {
    result = operator_named(value.op).run(arguments, value.numbers);
  } catch (const c10::Error&) {
    throw Unfit();
  }
  if (!is_useful(result)) throw Unfit();
  return result;
}

Tensors run_dense(const Program& program) {
  Tensors values;
  for (std::size_t i = 0; i < program.values.size(); ++i) {
    values.push_back(dense_value(program.values[i], i, values));
  }
  return values;
}

bool is_fit(const Program& program) {
  try {
    static_cast<void>(run_dense(program));
  } catch (const Unfit&) {
    return false;
  }
  return std::all_of(program.values.begin(), program.values.end(), [&](const Value& each) {
    return each.op != "input" || is_valid(each.placements, static_cast<std::int64_t>(each.numbers.size()));
  });
}

}  // namespace cohort::test::programs
