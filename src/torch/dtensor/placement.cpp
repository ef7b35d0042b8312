// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/torch/placement.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ostream>

namespace cohort {

namespace {

constexpr std::array<std::string_view, 5> reduction_names{"sum", "avg", "product", "max", "min"};

Placement::Reduction parse_reduction(std::string_view name) {
  const auto* const it = std::find(reduction_names.begin(), reduction_names.end(), name);
  if (it == reduction_names.end()) {
    throw ValueError(
        fmt::format("Partial: unknown reduction '{}'; known are {}", name, fmt::join(reduction_names, ", ")));
  }
  return static_cast<Placement::Reduction>(it - reduction_names.begin());
}

std::int64_t checked_split_factor(std::int64_t split_factor) {
  if (split_factor < 1) {
    throw ValueError(fmt::format("StridedShard: split_factor must be positive, but is {}", split_factor));
  }
  return split_factor;
}

}  // namespace

StridedShard::StridedShard(std::int64_t dim, std::int64_t split_factor)
    : Placement(Kind::strided_shard, dim, checked_split_factor(split_factor), Reduction::sum) {}

Partial::Partial(std::string_view reduction) : Partial(parse_reduction(reduction)) {}

std::int64_t Placement::dim() const {
  if (!is_shard())
    throw Error(fmt::format("the placement {} has no tensor dimension: it is not a shard", to_string(*this)));
  return dim_;
}

Placement::Reduction Placement::reduction() const {
  if (!is_partial())
    throw Error(fmt::format("the placement {} has no reduction: it is not a Partial", to_string(*this)));
  return reduction_;
}

std::string_view to_string(Placement::Reduction reduction) {
  return reduction_names.at(static_cast<std::size_t>(reduction));
}

std::string to_string(const Placement& placement) {
  switch (placement.kind()) {
    case Placement::Kind::replicate:
      return "R";
    case Placement::Kind::shard:
      return fmt::format("S({})", placement.dim());
    case Placement::Kind::strided_shard:
      return fmt::format("_S({}, {})", placement.dim(), placement.split_factor());
    case Placement::Kind::partial:
      break;
  }
  return fmt::format("P({})", to_string(placement.reduction()));
}

std::string to_string(const Placements& placements) {
  std::string text = "[";
  for (const auto& each : placements) {
    if (text.size() > 1) text += ", ";
    text += to_string(each);
  }
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Placement& placement) {
  return out << to_string(placement);
}

std::size_t hash_value(const Placement& placement) noexcept {
  // Each kind sets one of dim and reduction only; a multiplication spreads the few bits over the word.
  const auto number = placement.is_shard()     ? static_cast<std::size_t>(placement.dim())
                      : placement.is_partial() ? static_cast<std::size_t>(placement.reduction())
                                               : std::size_t{0};
  const auto split = static_cast<std::size_t>(placement.split_factor());
  const auto packed = (number << 34U) ^ (split << 2U) ^ static_cast<std::size_t>(placement.kind());
  return packed * std::size_t{0x9E3779B97F4A7C15U};
}

}  // namespace cohort
