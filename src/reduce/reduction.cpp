// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/reduction.h>

#include <fmt/format.h>

namespace cohort::detail {

std::string checked_reduction_name(std::string name) {
  constexpr std::size_t longest = 100;
  if (name.empty()) throw ValueError("a Reduction needs a name, by which the ranks compare what they were given");
  if (name.size() > longest) {
    throw ValueError(fmt::format("the name of a Reduction has at most {} characters, not {}", longest, name.size()));
  }
  return name;
}

}  // namespace cohort::detail
