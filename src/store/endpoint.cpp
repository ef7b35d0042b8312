// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/endpoint.h>
#include <cohort/error.h>

#include <fmt/format.h>

#include "core/parse.h"

namespace cohort {

Endpoint Endpoint::tcp(std::string host, std::uint16_t port) {
  Endpoint endpoint;
  endpoint.host = std::move(host);
  endpoint.port = port;
  return endpoint;
}

Endpoint Endpoint::unix_socket(std::string path) {
  Endpoint endpoint;
  endpoint.kind = Kind::unix_socket;
  endpoint.path = std::move(path);
  return endpoint;
}

Endpoint Endpoint::parse(std::string_view text) {
  const auto refuse = [text] {
    return ValueError(fmt::format("endpoint \"{}\": write tcp://host:port, unix:@name or unix:/path", text));
  };
  std::string_view rest = text;
  if (rest.starts_with("unix:")) {
    rest.remove_prefix(5);
    if (rest.empty() || rest == "@") throw refuse();
    return unix_socket(std::string(rest));
  }
  if (!rest.starts_with("tcp://")) throw refuse();
  rest.remove_prefix(6);
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos) throw refuse();
  const auto port = parse_integer<std::uint16_t>(rest.substr(colon + 1));
  auto host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    throw refuse();  // an IPv6 address without brackets
  }
  if (!port || host.empty() || host.find_first_of("[]") != std::string_view::npos) throw refuse();
  return tcp(std::string(host), *port);
}

std::string to_string(const Endpoint& endpoint) {
  if (endpoint.kind == Endpoint::Kind::unix_socket) return "unix:" + endpoint.path;
  if (endpoint.host.find(':') != std::string::npos) return fmt::format("tcp://[{}]:{}", endpoint.host, endpoint.port);
  return fmt::format("tcp://{}:{}", endpoint.host, endpoint.port);
}

}  // namespace cohort
