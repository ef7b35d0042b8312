// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/url.h"

#include <cohort/error.h>

#include <fmt/format.h>

#include "core/parse.h"

namespace cohort {

namespace {

std::string percent_decoded(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    unsigned code = 0;
    const auto digits = text.substr(i + 1, 2);
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 2 || error != std::errc{} || stop != digits.data() + 2) {
      throw ValueError(fmt::format("\"{}\": a % is followed by two hexadecimal digits", text));
    }
    plain += static_cast<char>(code);
    i += 2;
  }
  return plain;
}

void parse_authority(std::string_view authority, std::string_view whole, RendezvousUrl& url) {
  const auto bracket = authority.rfind(']');
  const auto colon = authority.rfind(':');
  const bool has_port = colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  auto host = authority.substr(0, has_port ? colon : authority.size());
  if (has_port) {
    const auto text = authority.substr(colon + 1);
    url.port = parse_integer<long>(text);
    if (!url.port) throw ValueError(fmt::format("rendezvous \"{}\": the port \"{}\" is not a number", whole, text));
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  url.host = host;
}

}  // namespace

RendezvousUrl parse_rendezvous_url(std::string_view text) {
  const auto separator = text.find("://");
  if (separator == std::string_view::npos || separator == 0) {
    throw ValueError(fmt::format("rendezvous \"{}\": not a URL; write env://, tcp://host:port or file:///path", text));
  }
  RendezvousUrl url;
  url.scheme = text.substr(0, separator);
  auto rest = text.substr(separator + 3);
  if (const auto mark = rest.find('?'); mark != std::string_view::npos) {
    for (const auto pair : split(rest.substr(mark + 1), '&')) {
      if (pair.empty()) continue;
      const auto equals = pair.find('=');
      const auto key = percent_decoded(pair.substr(0, equals));
      const auto value = equals == std::string_view::npos ? std::string() : percent_decoded(pair.substr(equals + 1));
      if (!url.query.emplace(key, value).second) {
        throw ValueError(fmt::format("rendezvous \"{}\": \"{}\" is given twice", text, key));
      }
    }
    rest = rest.substr(0, mark);
  }
  const auto slash = rest.find('/');
  parse_authority(rest.substr(0, slash), text, url);
  if (slash != std::string_view::npos) url.path = percent_decoded(rest.substr(slash));
  return url;
}

}  // namespace cohort
