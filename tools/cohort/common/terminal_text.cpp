// SPDX-License-Identifier: BSD-3-Clause
#include "common/terminal_text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace cohort::tool {

namespace {

constexpr std::string_view reset = "\x1b[0m";

/// The length of the SGR sequence at the beginning of `text`; 0: there is none.
std::size_t colour_length(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const auto end = text.find_first_not_of("0123456789;:", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

/// How many bytes the character at the beginning of `text` has in UTF-8; 0: it is not a character.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0x80   ? 1
                             : byte(0) < 0xc2 ? 0
                             : byte(0) < 0xe0 ? 2
                             : byte(0) < 0xf0 ? 3
                             : byte(0) < 0xf5 ? 4
                                              : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
  }
  return length;
}

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= ' ' && c <= '~') || c == '\t'; });
}

}  // namespace

std::string for_terminal(std::string_view text, Colours colours) {
  if (is_plain(text)) return std::string(text);
  std::string shown;
  bool has_colours = false;
  while (!text.empty()) {
    if (const auto length = colours == Colours::keep ? colour_length(text) : 0; length > 0) {
      shown += text.substr(0, length);
      text.remove_prefix(length);
      has_colours = true;
      continue;
    }
    const auto length = std::max<std::size_t>(character_length(text), 1);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool is_control_of_8_bits = first == 0xc2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if ((first < 0x20 && first != '\t') || first == 0x7f) {
      shown += fmt::format("^{}", static_cast<char>(first ^ 0x40U));
    } else if (is_control_of_8_bits) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[1]));
    } else if (first >= 0x80 && length == 1) {
      shown += fmt::format("\\x{:02x}", first);  // not UTF-8; on some terminals a control character
    } else {
      shown += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  if (has_colours) shown += reset;
  return shown;
}

std::string shown_on(int fd, std::string text) {
  return ::isatty(fd) == 1 ? for_terminal(text, Colours::drop) : std::move(text);
}

}  // namespace cohort::tool
