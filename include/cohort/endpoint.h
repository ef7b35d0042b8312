// SPDX-License-Identifier: BSD-3-Clause
//
// The address of a store server, as text in one of these forms:
//
// ```text
//   tcp://10.0.0.1:29500    tcp://[::1]:0    unix:/path/to/socket
//   unix:@name              in the abstract name space: there is no file, and the name is free when its process ends
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
  std::string host;        ///< TCP: a name or an address, without brackets
  std::uint16_t port = 0;  ///< TCP: 0 lets the kernel choose
  std::string path;        ///< unix socket: a path, or "@name" in the abstract name space

  static Endpoint tcp(std::string host, std::uint16_t port);
  static Endpoint unix_socket(std::string path);
  /// Throws ValueError if the text has none of the forms above.
  static Endpoint parse(std::string_view text);

  bool operator==(const Endpoint&) const = default;
};

COHORT_API std::string to_string(const Endpoint& endpoint);
/// Whether the host is 127.0.0.0/8, ::1, or a name that resolves to such addresses only.
COHORT_API bool is_loopback(const std::string& host);

}  // namespace cohort
