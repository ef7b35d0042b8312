// SPDX-License-Identifier: BSD-3-Clause
#include "trace/cbor_check.h"

#include <fmt/format.h>

#include <cstdint>

namespace cohort::trace {

namespace {

// RFC 8949: the upper three bits of an item's first byte are its type, the lower five its argument or how to find it.
enum class Type : std::uint8_t { number, negative, bytes, text, list, map, tag, simple };
constexpr unsigned until_break = 31;
constexpr unsigned break_byte = 0xff;

class Check {
 public:
  Check(std::string_view bytes, int deepest) : bytes_(bytes), deepest_(deepest) {}

  /// Passes one item; false: there is a problem. Calls itself at most `deepest` times.
  bool item(int depth) {
    if (depth > deepest_) return fail("it is nested too deeply");
    if (at_ == bytes_.size()) return fail_here();
    const unsigned first = byte(at_++);
    const auto type = static_cast<Type>(first >> 5U);
    const auto info = first & 0x1fU;
    if (info == until_break) return of_unknown_length(type, depth);
    std::uint64_t argument = 0;
    if (!read_argument(info, argument)) return false;
    switch (type) {
      case Type::number:
      case Type::negative:
      case Type::simple:
        return true;
      case Type::bytes:
      case Type::text:
        return skip(argument);
      case Type::list:
        return items(argument, depth + 1);
      case Type::map:
        return argument <= bytes_.size() ? items(2 * argument, depth + 1) : fail_here();
      case Type::tag:
        return item(depth + 1);
    }
    return fail_here();
  }

  const std::optional<std::string>& problem() const { return problem_; }

 private:
  unsigned byte(std::size_t at) const { return static_cast<unsigned char>(bytes_[at]); }

  bool fail(std::string why) {
    problem_ = std::move(why);
    return false;
  }
  bool fail_here() { return fail(fmt::format("it is cut off or malformed at byte {}", at_)); }

  bool read_argument(unsigned info, std::uint64_t& argument) {
    argument = info;
    if (info < 24) return true;
    if (info > 27) return fail_here();
    const std::size_t size = std::size_t{1} << (info - 24);
    if (bytes_.size() - at_ < size) return fail_here();
    argument = 0;
    for (std::size_t i = 0; i < size; ++i) argument = argument << 8U | byte(at_++);
    return true;
  }

  bool skip(std::uint64_t size) {
    if (bytes_.size() - at_ < size) return fail_here();
    at_ += static_cast<std::size_t>(size);
    return true;
  }

  bool items(std::uint64_t count, int depth) {
    // Each takes a byte at least, so this ends with the bytes, whatever the count claims.
    for (std::uint64_t i = 0; i < count; ++i) {
      if (!item(depth)) return false;
    }
    return true;
  }

  bool takes_break() {
    if (at_ == bytes_.size() || byte(at_) != break_byte) return false;
    ++at_;
    return true;
  }

  bool of_unknown_length(Type type, int depth) {
    switch (type) {
      case Type::bytes:
      case Type::text:
        while (!takes_break()) {
          if (at_ == bytes_.size()) return fail_here();
          const auto first = byte(at_);
          if (static_cast<Type>(first >> 5U) != type || (first & 0x1fU) == until_break) {
            return fail(fmt::format("a text in pieces has a piece at byte {} that is none", at_));
          }
          if (!item(depth)) return false;
        }
        return true;
      case Type::list:
        while (!takes_break()) {
          if (!item(depth + 1)) return false;
        }
        return true;
      case Type::map:
        while (!takes_break()) {
          if (!items(2, depth + 1)) return false;
        }
        return true;
      default:
        return fail_here();
    }
  }

  std::string_view bytes_;
  int deepest_;
  std::size_t at_ = 0;
  std::optional<std::string> problem_;
};

}  // namespace

std::optional<std::string> problem_with_cbor(std::string_view bytes, int deepest) {
  Check check(bytes, deepest);
  check.item(1);
  return check.problem();
}

}  // namespace cohort::trace
