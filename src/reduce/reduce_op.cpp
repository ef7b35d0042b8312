// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/reduce_op.h>
#include <cohort/reduction.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

namespace cohort {

namespace {

using Kind = ReduceOp::Kind;

/// In the order of Kind. Those that need more than a name come last.
constexpr std::array<std::string_view, 10> kind_names = {"sum",  "avg", "product", "min",        "max",
                                                         "band", "bor", "bxor",    "premul_sum", "user"};
constexpr auto nameable = std::span(kind_names).first<8>();

constexpr auto float_kinds =
    std::to_array({Kind::sum, Kind::avg, Kind::product, Kind::min, Kind::max, Kind::premul_sum});
constexpr auto integer_kinds =
    std::to_array({Kind::sum, Kind::product, Kind::min, Kind::max, Kind::band, Kind::bor, Kind::bxor});
constexpr auto complex_kinds = std::to_array({Kind::sum, Kind::avg, Kind::premul_sum});

std::span<const Kind> kinds_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f32:
    case DType::f64:
      return float_kinds;
    case DType::i8:
    case DType::u8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
    case DType::boolean:
    case DType::u16:
    case DType::u32:
    case DType::u64:
      return integer_kinds;
    case DType::complex64:
    case DType::complex128:
      return complex_kinds;
    case DType::raw:
      break;
  }
  return {};
}

template <class T>
T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// The exact value of a number in any 16-bit binary format.
double widen(std::uint16_t bits, int mantissa_bits) {
  const int exponent_mask = (1 << (15 - mantissa_bits)) - 1;
  const int bias = exponent_mask / 2;
  const int exponent = (bits >> mantissa_bits) & exponent_mask;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == exponent_mask) return mantissa == 0 ? sign * HUGE_VAL : std::copysign(std::nan(""), sign);
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/// Hexadecimal, so that no digit is lost.
std::string hexadecimal(double value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.begin(), digits.end(), std::fabs(value), std::chars_format::hex).ptr;
  return fmt::format("{}{}{}", std::signbit(value) ? "-" : "", std::isfinite(value) ? "0x" : "",
                     std::string_view(digits.data(), static_cast<std::size_t>(end - digits.begin())));
}

std::optional<double> parse_hexadecimal(std::string_view text) {
  const bool negative = text.starts_with('-');
  text.remove_prefix(negative ? 1 : 0);
  double value{};
  if (text == "inf") {
    value = HUGE_VAL;
  } else if (text == "nan") {
    value = std::nan("");
  } else {
    if (!text.starts_with("0x")) return std::nullopt;
    text.remove_prefix(2);
    // from_chars would accept a second sign, "inf" and "nan" here.
    if (text.empty() || text.find_first_not_of("0123456789abcdefABCDEF.pP+-") != text.npos || text.front() == '-')
      return std::nullopt;
    const auto* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value, std::chars_format::hex);
    if (error != std::errc{} || stop != end) return std::nullopt;
  }
  return negative ? -value : value;
}

}  // namespace

void ReduceOp::refuse(Kind kind) {
  if (kind == Kind::premul_sum)
    throw ValueError("premul_sum needs a factor: make it with ReduceOp::premul_sum(factor)");
  if (kind == Kind::user) throw ValueError("a reduction of your own is a cohort::Reduction<T>, which has the function");
  throw ValueError(fmt::format("there is no ReduceOp::Kind {}", static_cast<int>(kind)));
}

ReduceOp ReduceOp::premul_sum(const ConstBuffer& one_element) {
  if (one_element.device().type != DeviceType::cpu)
    throw ValueError(
        fmt::format("the factor of a premul_sum must be in host memory, not on {}", to_string(one_element.device())));
  if (one_element.count() != 1)
    throw ValueError(fmt::format("the factor of a premul_sum is one element, not {}", one_element.count()));
  switch (one_element.dtype()) {
    case DType::f16:
      return premul_sum(widen(read<std::uint16_t>(one_element.data()), 10));
    case DType::bf16:
      return premul_sum(widen(read<std::uint16_t>(one_element.data()), 7));
    case DType::f32:
      return premul_sum(static_cast<double>(read<float>(one_element.data())));
    case DType::f64:
      return premul_sum(read<double>(one_element.data()));
    default:
      throw ValueError(fmt::format("the factor of a premul_sum is of type f16, bf16, f32 or f64, not {}",
                                   to_string(one_element.dtype())));
  }
}

std::string_view to_string(ReduceOp::Kind kind) {
  const auto index = static_cast<std::size_t>(kind);
  if (index >= kind_names.size()) throw TypeError(fmt::format("unknown ReduceOp::Kind {}", index));
  return kind_names[index];
}

std::string_view to_string(const ReduceOp& op) {
  return op.user() != nullptr ? std::string_view(op.user()->name) : to_string(op.kind());
}

ReduceOp parse_reduce_op(std::string_view name) {
  if (name == to_string(Kind::premul_sum))
    throw ValueError("\"premul_sum\" needs a factor, which a name does not have: use ReduceOp::premul_sum(factor)");
  const auto found = std::find(nameable.begin(), nameable.end(), name);
  if (found == nameable.end())
    throw ValueError(fmt::format("unknown reduction \"{}\": {}", name, fmt::join(nameable, ", ")));
  return static_cast<Kind>(found - nameable.begin());
}

std::string serialize(const ReduceOp& op) {
  if (op.user() != nullptr)
    throw ValueError(fmt::format("the reduction \"{}\" is a function and cannot be serialized", to_string(op)));
  if (op.kind() != Kind::premul_sum) return std::string(to_string(op));
  return fmt::format("{}:{}", to_string(op), hexadecimal(op.factor()));
}

ReduceOp deserialize_reduce_op(std::string_view text) {
  constexpr std::string_view prefix = "premul_sum:";
  if (!text.starts_with(prefix)) return parse_reduce_op(text);
  const auto factor = parse_hexadecimal(text.substr(prefix.size()));
  if (!factor) throw ValueError(fmt::format("\"{}\": premul_sum: is followed by a number like 0x1.8p+1", text));
  return ReduceOp::premul_sum(*factor);
}

bool is_reducible(DType dtype, const ReduceOp& op) {
  const auto kinds = kinds_of(dtype);
  return std::find(kinds.begin(), kinds.end(), op.kind()) != kinds.end();
}

void check_reducible(DType dtype, const ReduceOp& op) {
  if (is_reducible(dtype, op)) return;
  if (dtype == DType::raw) {
    throw TypeError(
        fmt::format("{} has no meaning for elements of type raw, which are structs that are moved as bytes: to reduce "
                    "them, pass a cohort::Reduction<T> with a function of your own",
                    to_string(op)));
  }
  std::vector<std::string_view> allowed;
  for (const auto kind : kinds_of(dtype)) allowed.push_back(to_string(kind));
  throw TypeError(fmt::format("{} has no meaning for elements of type {}, which can be reduced by {}", to_string(op),
                              to_string(dtype), fmt::join(allowed, ", ")));
}

}  // namespace cohort
