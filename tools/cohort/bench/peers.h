// SPDX-License-Identifier: BSD-3-Clause
//
// Other libraries that are measured in turn with us, each in the settings that one of its users would try. Which of
// them is best differs by operation, size and machine; what we are compared with is the best of each size.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cohort::bench {

struct PeerSetting {
  std::string name{};                                              ///< "openmpi:tuned_rab"
  std::vector<std::string> command{};                              ///< how to start its driver
  std::vector<std::pair<std::string, std::string>> environment{};  ///< on top of ours
};

struct PeerPlace {
  int ranks = 2;
  int cores = 1;
  /// The folder of the drivers (bench/peers in the build folder).
  std::filesystem::path drivers{};
};

/// All sensible settings of the libraries whose driver was built and whose launcher is installed.
std::vector<PeerSetting> available_peers(const PeerPlace& place);

/// For `--peers auto`: a line for each library that says what was looked for and what was found.
std::string describe_search(const PeerPlace& place);

/// Those that `wanted` names: "auto" (all), "none", libraries ("openmpi") and settings ("gloo:hd"). A name that is not
/// among the available ones is a ValueError that lists them.
std::vector<PeerSetting> choose_peers(std::vector<PeerSetting> available, const std::vector<std::string>& wanted);

/// The folder of the drivers in the build folder that `program` lies in.
std::filesystem::path peer_drivers_of(const std::filesystem::path& program);

}  // namespace cohort::bench
