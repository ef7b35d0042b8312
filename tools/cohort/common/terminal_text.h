// SPDX-License-Identifier: BSD-3-Clause
//
// Text from elsewhere (what a rank wrote, the name of a file) as it may be shown on a terminal. Terminals take orders
// from what they show: to move the cursor onto another rank's line, to change the window's title, to send keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cohort::tool {

/// Whether sequences that set colours and faces (SGR, "\x1b[...m") are kept. They are switched off at the end of the
/// text.
enum class Colours : std::uint8_t { keep, drop };

/// Control characters other than a tabulator become visible: ESC is shown as ^[, U+009B as \x9b. All other characters
/// stay as they are.
std::string for_terminal(std::string_view text, Colours colours);

/// The text as it is, or for_terminal() without colours where `fd` is a terminal.
std::string shown_on(int fd, std::string text);

}  // namespace cohort::tool
