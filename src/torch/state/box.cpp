// SPDX-License-Identifier: BSD-3-Clause
#include "torch/state/box.h"

#include <cohort/torch/checkpoint_error.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>

#include "torch/state/value_text.h"

namespace cohort {

namespace {

/// Numbers modulo the prime 2^61 - 1.
using Residue = std::uint64_t;
constexpr unsigned residue_bits = 61;
constexpr Residue modulus = (Residue{1} << residue_bits) - 1;

Residue reduced(Residue value) {
  return value >= modulus ? value - modulus : value;
}
Residue sum(Residue a, Residue b) {
  return reduced(a + b);
}
Residue difference(Residue a, Residue b) {
  return reduced(a + modulus - b);
}
Residue product(Residue a, Residue b) {
  __extension__ using Wide = unsigned __int128;
  const auto wide = static_cast<Wide>(a) * b;
  return sum(static_cast<Residue>(wide & modulus), static_cast<Residue>(wide >> residue_bits));
}

/// A random number for each place at which boxes begin or end, in each dimension.
class RandomPlaces {
 public:
  explicit RandomPlaces(std::size_t dims) : numbers_(dims) {}

  /// The product of what a box spans in each dimension.
  Residue volume(const Box& box) {
    Residue volume = 1;
    for (std::size_t dim = 0; dim < box.sizes.size(); ++dim) {
      const auto begin = number(dim, box.offsets[dim]);
      volume = product(volume, difference(number(dim, box.offsets[dim] + box.sizes[dim]), begin));
    }
    return volume;
  }

 private:
  Residue number(std::size_t dim, std::int64_t place) {
    const auto [it, is_new] = numbers_[dim].try_emplace(place);
    if (is_new) it->second = reduced(random_() & modulus);
    return it->second;
  }

  static std::uint64_t seed() {
    std::random_device device;
    return (std::uint64_t{device()} << 32U) | device();
  }

  std::mt19937_64 random_{seed()};
  std::vector<std::map<std::int64_t, Residue>> numbers_;
};

std::string text_of(const Box& box) {
  return part_name("", box);
}

}  // namespace

std::optional<std::int64_t> count_elements(const std::vector<std::int64_t>& shape) {
  std::int64_t all = 1;
  bool empty = false;
  for (const auto size : shape) {
    if (size < 0 || __builtin_mul_overflow(all, std::max<std::int64_t>(size, 1), &all)) return std::nullopt;
    empty = empty || size == 0;
  }
  return empty ? 0 : all;
}

Box whole_box(const std::vector<std::int64_t>& shape) {
  return {.offsets = std::vector<std::int64_t>(shape.size()), .sizes = shape};
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box common;
  for (std::size_t dim = 0; dim < a.sizes.size(); ++dim) {
    const auto begin = std::max(a.offsets[dim], b.offsets[dim]);
    const auto end = std::min(a.offsets[dim] + a.sizes[dim], b.offsets[dim] + b.sizes[dim]);
    if (begin >= end) return std::nullopt;
    common.offsets.push_back(begin);
    common.sizes.push_back(end - begin);
  }
  return common;
}

std::string part_name(std::string_view tensor, const Box& box) {
  std::vector<std::string> slices;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim) {
    slices.push_back(fmt::format("{}:{}", box.offsets[dim], box.offsets[dim] + box.sizes[dim]));
  }
  return fmt::format("{}[{}]", tensor, fmt::join(slices, ","));
}

std::optional<PartName> parse_part_name(std::string_view name) {
  const auto open = name.rfind('[');
  if (open == std::string_view::npos || !name.ends_with(']')) return std::nullopt;
  PartName part{.tensor = std::string(name.substr(0, open))};
  auto slices = name.substr(open + 1, name.size() - open - 2);
  while (!slices.empty()) {
    const auto comma = slices.find(',');
    const auto slice = slices.substr(0, comma);
    const auto colon = slice.find(':');
    if (colon == std::string_view::npos || comma + 1 == slices.size()) return std::nullopt;
    const auto begin = text_to_integer(slice.substr(0, colon));
    const auto end = text_to_integer(slice.substr(colon + 1));
    if (!begin.has_value() || !end.has_value() || *begin < 0 || *end < *begin) return std::nullopt;
    part.box.offsets.push_back(*begin);
    part.box.sizes.push_back(*end - *begin);
    slices.remove_prefix(comma == std::string_view::npos ? slices.size() : comma + 1);
  }
  return part;
}

void check_tiling(const std::vector<std::int64_t>& shape, const std::vector<Box>& boxes) {
  const auto total = count_elements(shape);
  if (!total.has_value()) throw CheckpointError(fmt::format("its shape [{}] is not one", fmt::join(shape, ", ")));
  std::int64_t covered = 0;
  for (const auto& box : boxes) {
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (box.offsets[dim] <= shape[dim] && box.sizes[dim] <= shape[dim] - box.offsets[dim]) continue;
      throw CheckpointError(
          fmt::format("its part {} lies outside its shape [{}]", text_of(box), fmt::join(shape, ", ")));
    }
    // Each part has at most `total` elements.
    if (__builtin_add_overflow(covered, count_elements(box.sizes).value_or(0), &covered) || covered > *total) {
      throw CheckpointError(fmt::format("its parts overlap: {} has elements that others have too", text_of(box)));
    }
  }
  if (covered < *total) {
    throw CheckpointError(fmt::format("parts of it are missing: {} of {} elements are there", covered, *total));
  }
  if (*total == 0) return;
  // How often an element is covered is a sum of products of steps, one for each box and dimension, which is determined
  // by where the steps are: the boxes cover everything once if and only if their corners, with signs, add up to those
  // of the whole. A box has two to the power of its dimensions of them, so they are not compared one by one: multiplied
  // out, the volume of a box is the sum of its corners, each a product of one number for each dimension. Sums of
  // different corners are different polynomials of these numbers, and two polynomials have the same value at random
  // numbers with a probability of less than 2^-54 (the lemma of Schwartz and Zippel, for at most 64 dimensions).
  RandomPlaces places(shape.size());
  Residue volume = 0;
  for (const auto& box : boxes) volume = sum(volume, places.volume(box));
  if (volume != places.volume(whole_box(shape))) {
    throw CheckpointError("its parts overlap: some elements are there twice, and others are missing");
  }
}

}  // namespace cohort
