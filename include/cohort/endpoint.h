// SPDX-License-Identifier: BSD-3-Clause
//
// Where a store server listens.
//
// ```text
//   tcp://10.0.0.1:29500   tcp://[::1]:0   unix:@name (abstract: no file, gone with its process)   unix:/path/to/socket
// ```
#pragma once

#include <cohort/export.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace cohort {

struct COHORT_API Endpoint {
  enum class Kind : std::uint8_t { tcp, unix_socket };

  Kind kind = Kind::tcp;
  std::string host;        ///< TCP: name or address, without brackets
  std::uint16_t port = 0;  ///< TCP: 0 lets the kernel choose
  std::string path;        ///< unix: "@name" for the abstract name space, else a path

  static Endpoint tcp(std::string host, std::uint16_t port);
  static Endpoint unix_socket(std::string path);
  /// The forms above; else a ValueError.
  static Endpoint parse(std::string_view text);

  bool operator==(const Endpoint&) const = default;
};

COHORT_API std::string to_string(const Endpoint& endpoint);
/// 127.0.0.0/8, ::1, or a name that the system's resolver gives only such addresses for.
COHORT_API bool is_loopback(const std::string& host);

}  // namespace cohort
