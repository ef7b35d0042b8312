// SPDX-License-Identifier: BSD-3-Clause
//
// The names in a checkpoint: "model.layer1.weight" for what all ranks share, "power_sgd.rank1.bucket0_error" for what
// each rank has of its own.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace cohort {

inline constexpr std::string_view reserved_name = "cohort";
inline constexpr std::string_view random_name = "cohort.random_state";

/// Keys of the metadata, followed by the name of a tensor: that it was complex, and the shape of a distributed one.
inline constexpr std::string_view complex_key = "cohort.complex.";
inline constexpr std::string_view shape_key = "cohort.shape.";

inline std::string rank_name(const std::string& entry, int rank) {
  return fmt::format("{}.rank{}", entry, rank);
}
/// The key of the metadata that says that an object is in the file, even if it has no state.
inline std::string entry_key(const std::string& entry) {
  return "cohort.entry." + entry;
}

}  // namespace cohort
