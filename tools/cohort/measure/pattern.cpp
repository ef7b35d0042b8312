// SPDX-License-Identifier: BSD-3-Clause
#include "measure/pattern.h"

#include <algorithm>
#include <complex>
#include <cstring>

namespace cohort::measure {

namespace {

constexpr int period = 251;

// Exact for the integers that occur here: below 2^8 in magnitude for bf16, 2^11 for f16.
std::uint16_t to_bf16(double value) {
  const auto single = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof(bits));
  bits += 0x7fffU + ((bits >> 16U) & 1U);  // to nearest even
  return static_cast<std::uint16_t>(bits >> 16U);
}

std::uint16_t to_f16(double value) {
  const auto single = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof(bits));
  const auto sign = (bits >> 16U) & 0x8000U;
  const auto magnitude = bits & 0x7fffffffU;
  if (magnitude == 0) return static_cast<std::uint16_t>(sign);
  const auto rounded = magnitude + 0xfffU + ((magnitude >> 13U) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - (112U << 23U)) >> 13U));  // re-biased; no subnormals here
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

void encode(DType dtype, double value, std::byte* to) {
  switch (dtype) {
    case DType::f16:
      return put(to, to_f16(value));
    case DType::bf16:
      return put(to, to_bf16(value));
    case DType::f32:
      return put(to, static_cast<float>(value));
    case DType::f64:
      return put(to, value);
    case DType::complex64:
      return put(to, std::complex<float>(static_cast<float>(value), 0));
    case DType::complex128:
      return put(to, std::complex<double>(value, 0));
    default: {  // integers: the low bytes come first
      const auto integer = dtype == DType::boolean ? std::int64_t{value != 0} : static_cast<std::int64_t>(value);
      std::memcpy(to, &integer, size_of(dtype));
    }
  }
}

double input_value(const Command& command, int ranks, int source, int destination, int index) {
  if (!reduces(command.operation)) return (source * 31 + destination * 17 + index * 7) % 101;
  // At each place one rank has a 2 and the rest a 1: no product overflows, however many ranks there are.
  if (command.reduction == Reduction::prod) return (index + destination + source) % ranks == 0 ? 2 : 1;
  return (source * 3 + destination * 5 + index * 7) % 4;
}

double combine(Reduction reduction, DType dtype, double a, double b) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::avg:
      // Sums of truth values are truth values.
      return dtype == DType::boolean ? std::max(a, b) : a + b;
    case Reduction::prod:
      return a * b;
    case Reduction::min:
      return std::min(a, b);
    case Reduction::max:
      return std::max(a, b);
  }
  return 0;
}

double as_element(DType dtype, double value) {
  return dtype == DType::boolean ? static_cast<double>(value != 0) : value;
}

}  // namespace

Pattern::Pattern(DType dtype, const std::vector<double>& values) : element_(size_of(dtype)) {
  period_.resize(values.size() * element_);
  for (std::size_t i = 0; i < values.size(); ++i) encode(dtype, values[i], period_.data() + i * element_);
}

Pattern Pattern::of_input(const Command& command, int ranks, int source, int destination) {
  std::vector<double> values(period);
  for (int i = 0; i < period; ++i) {
    values[static_cast<std::size_t>(i)] = input_value(command, ranks, source, destination, i);
  }
  return {command.dtype, values};
}

Pattern Pattern::of_reduction(const Command& command, int ranks, int destination) {
  std::vector<double> values;
  for (int i = 0; i < period; ++i) {
    const auto value = [&](int source) {
      return as_element(command.dtype, input_value(command, ranks, source, destination, i));
    };
    double result = value(0);
    for (int source = 1; source < ranks; ++source) {
      result = combine(command.reduction, command.dtype, result, value(source));
    }
    if (command.reduction == Reduction::avg) result /= ranks;
    values.push_back(result);
  }
  return {command.dtype, values};
}

void Pattern::fill(void* to, std::size_t count) const {
  auto* at = static_cast<std::byte*>(to);
  for (auto left = count * element_; left > 0;) {
    const auto n = std::min(left, period_.size());
    std::memcpy(at, period_.data(), n);
    at += n;
    left -= n;
  }
}

std::uint64_t Pattern::count_wrong(const void* at, std::size_t count) const {
  std::uint64_t wrong = 0;
  const auto* from = static_cast<const std::byte*>(at);
  for (auto left = count * element_; left > 0;) {
    const auto n = std::min(left, period_.size());
    if (std::memcmp(from, period_.data(), n) != 0) {
      for (std::size_t i = 0; i < n; i += element_) {
        wrong += std::memcmp(from + i, period_.data() + i, element_) != 0 ? 1 : 0;
      }
    }
    from += n;
    left -= n;
  }
  return wrong;
}

namespace {

/// The contents of an array, block by block; where there are no blocks it is one. Empty: they do not matter.
using Blocks = std::vector<Pattern>;

Blocks inputs_of(const Command& command, int ranks, int rank) {
  if (!has_data(command.operation)) return {};
  if (command.operation == Operation::broadcast && rank != command.root) return {};
  const bool has_one_for_each = has_blocks(command.operation) && command.operation != Operation::all_gather;
  Blocks blocks;
  for (int i = 0; i < (has_one_for_each ? ranks : 1); ++i) {
    blocks.push_back(Pattern::of_input(command, ranks, rank, i));
  }
  return blocks;
}

Blocks outputs_of(const Command& command, int ranks, int rank) {
  switch (command.operation) {
    case Operation::reduce:
      if (rank != command.root) return {};
      [[fallthrough]];
    case Operation::all_reduce:
      return {Pattern::of_reduction(command, ranks, 0)};
    case Operation::reduce_scatter:
      return {Pattern::of_reduction(command, ranks, rank)};
    case Operation::broadcast:
      return {Pattern::of_input(command, ranks, command.root, 0)};
    case Operation::send_recv:
      return rank > 1 ? Blocks() : Blocks{Pattern::of_input(command, ranks, 1 - rank, 0)};
    case Operation::all_gather:
    case Operation::all_to_all: {
      const int destination = command.operation == Operation::all_gather ? 0 : rank;
      Blocks blocks;
      for (int source = 0; source < ranks; ++source) {
        blocks.push_back(Pattern::of_input(command, ranks, source, destination));
      }
      return blocks;
    }
    case Operation::barrier:
      return {};
  }
  return {};
}

}  // namespace

void fill_inputs(const Command& command, std::size_t count, int ranks, int rank, void* input, void* output) {
  if (!has_data(command.operation)) return;
  const auto bytes = count * size_of(command.dtype);
  // Before the inputs: in place they are the same memory.
  const bool is_block = command.operation == Operation::reduce_scatter;
  std::memset(output, 0xa5, is_block ? bytes : total_bytes(command.operation, count, command.dtype, ranks));
  auto* to = static_cast<std::byte*>(input);
  for (const auto& block : inputs_of(command, ranks, rank)) {
    block.fill(to, count);
    to += bytes;
  }
}

std::uint64_t count_wrong_outputs(const Command& command, std::size_t count, int ranks, int rank, const void* output) {
  std::uint64_t wrong = 0;
  const auto* from = static_cast<const std::byte*>(output);
  for (const auto& block : outputs_of(command, ranks, rank)) {
    wrong += block.count_wrong(from, count);
    from += count * size_of(command.dtype);
  }
  return wrong;
}

}  // namespace cohort::measure
