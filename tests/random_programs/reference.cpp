// SPDX-License-Identifier: BSD-3-Clause
#include "random_programs/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "reduce/reference.h"

namespace cohort::random_programs {

namespace {

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

double real_of(const Step& step, std::uint64_t random, Values values) {
  if (values == Values::any) {
    const double size = 0.25 + static_cast<double>(random % 1'000'003) / 300'007.0;
    return random % 2 == 0 ? size : -size;
  }
  const double sign = random % 2 == 0 ? 1 : -1;
  const auto which = (random >> 8U) % 16;
  // Products stay far from overflow, whatever is multiplied first.
  if (step.reduction == ReduceOp::Kind::product) return sign * (which == 0 ? 2 : which == 1 ? 0.5 : 1);
  constexpr std::array<double, 3> sizes{0.5, 1, 2};
  return sign * sizes[which % sizes.size()];
}

/// The pieces that the ranks 0 .. n - 1 contribute, each cut to the elements first .. first + count - 1.
ByteVector reduced(const Step& step, int n, std::size_t piece, std::size_t whole, std::size_t first, std::size_t count,
                   Values values) {
  std::vector<ByteVector> inputs;
  std::vector<const std::uint8_t*> sources;
  std::vector<double> factors;
  for (int rank = 0; rank < n; ++rank) {
    inputs.push_back(contents(step, rank, piece, whole, values));
    factors.push_back(factor_of(step, rank, values));
  }
  sources.reserve(inputs.size());
  for (const auto& each : inputs) sources.push_back(each.data() + first * size_of(step.dtype));
  return test::reference(step.dtype, step.reduction, sources, factors, n, count);
}

/// Each rank combines its own buffers first, and its result has the buffers' type.
ByteVector reduced_lists(const Step& step, int n, Values values) {
  std::vector<ByteVector> own;
  const auto combine = [&](const std::vector<ByteVector>& all) {
    std::vector<const std::uint8_t*> sources;
    sources.reserve(all.size());
    for (const auto& each : all) sources.push_back(each.data());
    return test::reference(step.dtype, step.reduction, sources, std::vector<double>(all.size(), 1), n, step.count);
  };
  for (int rank = 0; rank < n; ++rank) {
    own.push_back(combine({contents(step, rank, 0, step.count, values), contents(step, rank, 1, step.count, values)}));
  }
  return combine(own);
}

void append(ByteVector& all, const ByteVector& part) {
  all.insert(all.end(), part.begin(), part.end());
}

ByteVector part_of(const Step& step, const ByteVector& whole, std::size_t first, std::size_t count) {
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(first * size_of(step.dtype));
  return {begin, begin + static_cast<std::ptrdiff_t>(count * size_of(step.dtype))};
}

/// What rank `from` sends to rank `to` in an all_to_all whose input is one buffer.
ByteVector block(const Step& step, int n, int from, int to, Values values) {
  const bool is_uneven = step.kind == Kind::all_to_all_uneven;
  const auto length = [&](int peer) { return is_uneven ? cell_of(step, from, peer) : step.count; };
  std::size_t first = 0;
  for (int peer = 0; peer < to; ++peer) first += length(peer);
  const auto whole = contents(step, from, 0, shape_of(step, n, from).inputs.at(0), values);
  return part_of(step, whole, first, length(to));
}

}  // namespace

bool is_reduction(Kind kind) {
  return kind <= Kind::reduce || (kind >= Kind::reduce_scatter && kind <= Kind::reduce_scatter_coalesced);
}

ByteVector contents(const Step& step, int rank, std::size_t piece, std::size_t count, Values values) {
  ByteVector bytes(count * size_of(step.dtype));
  const auto seed = mixed(step.seed, 0xda7a, at(rank), piece);
  const auto write = [&]<class T>(T /*type*/, auto&& number) {
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(T)) {
      const auto random = mixed(seed, i);
      T value;
      std::memcpy(&value, &random, sizeof(T));
      if (random % 16 != 0 || values == Values::exact) value = static_cast<T>(number(random >> 8U));
      std::memcpy(bytes.data() + i, &value, sizeof(T));
    }
  };
  const auto real = [&](std::uint64_t random) { return real_of(step, random, values); };
  switch (step.dtype) {
    case DType::f16:
      write(std::uint16_t{}, [&](auto random) { return test::to_half(static_cast<float>(real(random)), 10); });
      break;
    case DType::bf16:
      write(std::uint16_t{}, [&](auto random) { return test::to_half(static_cast<float>(real(random)), 7); });
      break;
    case DType::f32:
    case DType::complex64:
      write(float{}, real);
      break;
    case DType::f64:
    case DType::complex128:
      write(double{}, real);
      break;
    case DType::boolean: {
      constexpr std::array<std::uint8_t, 4> bools{0, 1, 2, 255};
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = bools[mixed(seed, i) % bools.size()];
      break;
    }
    default:
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(mixed(seed, i));
  }
  return bytes;
}

double factor_of(const Step& step, int rank, Values values) {
  if (step.reduction != ReduceOp::Kind::premul_sum) return 1;
  if (values == Values::any) return 1.0 / (rank + 3);
  constexpr std::array<double, 3> exact{0.5, 1, 2};
  return exact[mixed(step.seed, 0xfac, at(rank)) % exact.size()];
}

std::vector<ByteVector> expected(const Step& step, int n, int rank, Values values) {
  const auto shape = shape_of(step, n, rank);
  std::vector<ByteVector> results;
  const auto mine = at(rank);
  const auto sent = [&](int from, std::size_t piece, std::size_t count) {
    return contents(step, from, piece, count, values);
  };
  switch (step.kind) {
    case Kind::all_reduce:
      return {reduced(step, n, 0, step.count, 0, step.count, values)};
    case Kind::all_reduce_list:
      return std::vector<ByteVector>(shape.outputs.size(), reduced_lists(step, n, values));
    case Kind::all_reduce_coalesced:
      for (std::size_t j = 0; j < shape.outputs.size(); ++j) {
        results.push_back(reduced(step, n, j, shape.outputs[j], 0, shape.outputs[j], values));
      }
      return results;
    case Kind::reduce:
      if (rank != root_of(step, n)) return {sent(rank, 0, step.count)};
      return {reduced(step, n, 0, step.count, 0, step.count, values)};
    case Kind::broadcast:
      return {sent(root_of(step, n), 0, step.count)};
    case Kind::all_gather:
    case Kind::all_gather_coalesced:
      for (std::size_t j = 0; j < shape.inputs.size(); ++j) {
        ByteVector all;
        for (int from = 0; from < n; ++from) append(all, sent(from, j, shape.inputs[j]));
        results.push_back(std::move(all));
      }
      return results;
    case Kind::all_gather_list:
      for (int from = 0; from < n; ++from) results.push_back(sent(from, 0, shape.outputs[at(from)]));
      return results;
    case Kind::all_gather_lists_coalesced:
      for (int from = 0; from < n; ++from) {
        for (std::size_t j = 0; j < shape.inputs.size(); ++j) results.push_back(sent(from, j, shape.inputs[j]));
      }
      return results;
    case Kind::gather:
      for (std::size_t from = 0; from < shape.outputs.size(); ++from) {
        results.push_back(sent(static_cast<int>(from), 0, step.count));
      }
      return results;
    case Kind::scatter:
      return {sent(root_of(step, n), mine, step.count)};
    case Kind::reduce_scatter:
    case Kind::reduce_scatter_coalesced:
      for (std::size_t j = 0; j < shape.outputs.size(); ++j) {
        const auto each = shape.outputs[j];
        results.push_back(reduced(step, n, j, shape.inputs[j], mine * each, each, values));
      }
      return results;
    case Kind::reduce_scatter_list:
      return {reduced(step, n, mine, shape.outputs[0], 0, shape.outputs[0], values)};
    case Kind::all_to_all:
    case Kind::all_to_all_uneven: {
      ByteVector all;
      for (int from = 0; from < n; ++from) append(all, block(step, n, from, rank, values));
      return {all};
    }
    case Kind::all_to_all_list:
      for (int from = 0; from < n; ++from) results.push_back(sent(from, mine, shape.outputs[at(from)]));
      return results;
    case Kind::message:
      if (!shape.outputs.empty()) results.push_back(sent(sender_of(step, n), 0, step.count));
      return results;
    case Kind::exchange:
      return {sent((rank + n - shift_of(step, n)) % n, 0, shape.outputs[0])};
    case Kind::any_source:
      if (rank != root_of(step, n)) return {};
      for (int from = 0; from < n; ++from) {
        if (from != rank) results.push_back(sent(from, 0, step.count));
      }
      return results;
    default:
      return {};
  }
}

std::string bytes_of(const Step& step, int rank) {
  const auto length = step.is_uneven ? mixed(step.seed, 0xb17e, at(rank)) % (step.count + 1) : step.count;
  auto one_byte_each = step;
  one_byte_each.dtype = DType::u8;
  const auto bytes = contents(one_byte_each, rank, 0, length, Values::any);
  return {bytes.begin(), bytes.end()};
}

std::string difference(DType dtype, const ByteVector& got, const ByteVector& wanted) {
  if (got == wanted) return {};
  if (got.size() != wanted.size()) return fmt::format("{} bytes, not {}", got.size(), wanted.size());
  const auto a = test::with_one_nan(dtype, got);
  const auto b = test::with_one_nan(dtype, wanted);
  const auto [where, should] = std::mismatch(a.begin(), a.end(), b.begin());
  if (where == a.end()) return {};
  const auto size = size_of(dtype);
  const auto element = static_cast<std::size_t>(where - a.begin()) / size;
  const auto hex = [&](const ByteVector& bytes) {
    std::string text;
    for (std::size_t i = size; i-- > 0;) text += fmt::format("{:02x}", bytes[element * size + i]);
    return text;
  };
  return fmt::format("element {} of {} is {}, not {}", element, got.size() / size, hex(a), hex(b));
}

}  // namespace cohort::random_programs
