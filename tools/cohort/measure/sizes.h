// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::measure {

/// "64", "4K", "16M", "1G", also with "B" or "iB" behind: powers of 1024, as nccl-tests reads them. Else a ValueError.
std::size_t parse_size(std::string_view text);
/// "64 KiB"
std::string format_size(std::size_t bytes);

struct Sweep {
  std::size_t min = 0;
  std::size_t max = 0;
  std::size_t step = 0;    ///< bytes to add; used where factor is 1 or less
  std::size_t factor = 1;  ///< to multiply by
};

/// ValueError: it would not end, or is empty.
std::vector<std::size_t> sizes_of(const Sweep& sweep);

}  // namespace cohort::measure
