// SPDX-License-Identifier: BSD-3-Clause
#include "common/terminal_text.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace cohort::tool {
namespace {

std::string without_colours(std::string_view text) {
  return for_terminal(text, Colours::drop);
}
std::string with_colours(std::string_view text) {
  return for_terminal(text, Colours::keep);
}

TEST(TerminalText, OrdinaryTextStaysAsItIs) {
  for (const auto* const text : {"", "plain", "a\tb", "Grüße, 世界 🚀", "~!@#$%^&*()"}) {
    EXPECT_EQ(without_colours(text), text);
    EXPECT_EQ(with_colours(text), text);
  }
}

TEST(TerminalText, OrdersToTheTerminalBecomeVisible) {
  EXPECT_EQ(with_colours("\x1b[1A\x1b[2K[rank 9] forged"), "^[[1A^[[2K[rank 9] forged") << "to the line above";
  EXPECT_EQ(with_colours("\x1b]0;title\x07"), "^[]0;title^G");
  EXPECT_EQ(with_colours("\x1b[6n"), "^[[6n") << "would be answered as if typed";
  EXPECT_EQ(with_colours("own\b\b\bforged"), "own^H^H^Hforged");
  EXPECT_EQ(with_colours("a\rb\nc\vd\fe"), "a^Mb^Jc^Kd^Le");
  EXPECT_EQ(with_colours("\x7f"), "^?");
  EXPECT_EQ(with_colours("\x1b"), "^[");
  EXPECT_EQ(with_colours("\x1b[31"), "^[[31") << "not a whole sequence";
  EXPECT_EQ(with_colours("\x1b[31H"), "^[[31H");
}

TEST(TerminalText, ControlCharactersOf8BitsToo) {
  EXPECT_EQ(with_colours("\xc2\x9b"
                         "2J"),
            "\\x9b2J")
      << "as UTF-8";
  EXPECT_EQ(with_colours("\x9b"
                         "2J"),
            "\\x9b2J")
      << "as a byte";
  EXPECT_EQ(with_colours("\xe2\x82"), "\\xe2\\x82") << "half a character";
  EXPECT_EQ(with_colours("\xc2\xa0"), "\xc2\xa0") << "a space that does not break";
}

TEST(TerminalText, ColoursAreKeptWhereTheyAreWantedAndEndWithTheText) {
  EXPECT_EQ(with_colours("\x1b[1;31mred\x1b[0m, plain"), "\x1b[1;31mred\x1b[0m, plain\x1b[0m");
  EXPECT_EQ(with_colours("\x1b[38:2:255:0:0mred"), "\x1b[38:2:255:0:0mred\x1b[0m");
  EXPECT_EQ(without_colours("\x1b[31mred"), "^[[31mred");
}

TEST(TerminalText, OnlyTerminalsNeedIt) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(shown_on(ends[1], "\x1b[2J"), "\x1b[2J");
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace cohort::tool
