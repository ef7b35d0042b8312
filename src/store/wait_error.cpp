// SPDX-License-Identifier: BSD-3-Clause
#include "store/wait_error.h"

#include <fmt/format.h>

#include <algorithm>

namespace cohort {

std::string describe_missing(const std::vector<std::string>& keys) {
  constexpr std::size_t shown = 8;
  std::string text = keys.size() == 1 ? "timed out waiting for the key " : "timed out waiting for the keys ";
  for (std::size_t i = 0; i < std::min(keys.size(), shown); ++i)
    text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", keys[i]);
  if (keys.size() > shown) text += fmt::format(" (and {} more)", keys.size() - shown);
  return text;
}

std::string describe_not_a_number(std::string_view key) {
  return fmt::format("add to \"{}\": its value is not a decimal number, or the sum does not fit 64 bits", key);
}

std::string describe_empty_queue(std::string_view key) {
  return fmt::format("the queue \"{}\" is empty", key);
}

std::string describe_pop_timeout(std::string_view key) {
  return fmt::format("timed out waiting for a value in the queue \"{}\"", key);
}

}  // namespace cohort
