// SPDX-License-Identifier: BSD-3-Clause
//
// The URLs of rendezvous: scheme://host:port/path?rank=1&world_size=4
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace cohort {

struct RendezvousUrl {
  std::string scheme;
  std::string host;          ///< without brackets; empty when there is none
  std::optional<long> port;  ///< as written, also out of range
  std::string path;          ///< percent-decoded, with its leading slash
  std::map<std::string, std::string, std::less<>> query;
};

/// ValueError when it is not a URL, a port is not a number, or a query names a key twice.
RendezvousUrl parse_rendezvous_url(std::string_view text);

}  // namespace cohort
