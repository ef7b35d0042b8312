// SPDX-License-Identifier: BSD-3-Clause
#include "measure/sizes.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <limits>

#include "core/parse.h"

namespace cohort::measure {

namespace {

constexpr std::string_view units = "KMGT";

}  // namespace

std::size_t parse_size(std::string_view text) {
  const auto whole = text;
  const auto ends_with = [&](char letter) {
    return !text.empty() && std::toupper(static_cast<unsigned char>(text.back())) == letter;
  };
  if (ends_with('B')) text.remove_suffix(1);
  const bool has_i = ends_with('I');
  if (has_i) text.remove_suffix(1);
  unsigned shift = 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (!ends_with(units[i])) continue;
    shift = static_cast<unsigned>(10 * (i + 1));
    text.remove_suffix(1);
    break;
  }
  const auto number = parse_integer<std::size_t>(text);
  if (!number || (has_i && shift == 0) || *number > (std::numeric_limits<std::size_t>::max() >> shift)) {
    throw ValueError(fmt::format("\"{}\" is not a size: a number of bytes, or with K, M or G behind it", whole));
  }
  return *number << shift;
}

std::string format_size(std::size_t bytes) {
  unsigned unit = 0;
  while (unit < units.size() && bytes >= 1024 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{} {}iB", bytes, units[unit - 1]);
}

std::vector<std::size_t> sizes_of(const Sweep& sweep) {
  if (sweep.min > sweep.max) {
    throw ValueError(
        fmt::format("the smallest size, {}, is above the largest, {}", format_size(sweep.min), format_size(sweep.max)));
  }
  if (sweep.min == sweep.max) return {sweep.min};
  const bool multiplies = sweep.factor > 1;
  if (multiplies && sweep.min == 0) throw ValueError("sizes that are multiplied cannot begin at 0");
  if (!multiplies && sweep.step == 0) throw ValueError("sizes need a factor above 1 or a step above 0");
  std::vector<std::size_t> sizes;
  for (auto size = sweep.min;;) {
    sizes.push_back(size);
    if (multiplies ? size > sweep.max / sweep.factor : sweep.max - size < sweep.step) return sizes;
    size = multiplies ? size * sweep.factor : size + sweep.step;
  }
}

}  // namespace cohort::measure
