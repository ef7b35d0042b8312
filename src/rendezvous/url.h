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
  std::string host;          ///< without brackets; empty if there is none
  std::optional<long> port;  ///< as written, even if out of range
  std::string path;          ///< percent-decoded, with its leading slash
  std::map<std::string, std::string, std::less<>> query;
};

/// Throws ValueError if the text is not a URL, the port is not a number, or the query names a key twice.
RendezvousUrl parse_rendezvous_url(std::string_view text);

}  // namespace cohort
