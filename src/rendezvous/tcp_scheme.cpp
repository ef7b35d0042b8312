// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>

#include <fmt/format.h>

#include "rendezvous/hosting.h"
#include "rendezvous/schemes.h"
#include "rendezvous/store_host.h"

namespace cohort {

RendezvousResult tcp_scheme(const RendezvousRequest& request) {
  const auto url = parse_rendezvous_url(request.url);
  refuse_unknown_query(url, request.url);
  if (url.host.empty()) throw ValueError(fmt::format("rendezvous \"{}\": the host is missing", request.url));
  if (!url.port) throw ValueError(fmt::format("rendezvous \"{}\": the port number is missing", request.url));
  if (*url.port < 0 || *url.port > 65535) {
    throw ValueError(fmt::format("rendezvous \"{}\": a port is from 0 to 65535", request.url));
  }
  require_rank_and_size(request);
  if (*url.port == 0 && *request.size > 1) {
    throw ValueError(
        fmt::format("rendezvous \"{}\": with port 0 the other ranks could not know the port", request.url));
  }
  auto options = protected_options(request, request.env.secret_file);
  options.endpoint = Endpoint::tcp(url.host, static_cast<std::uint16_t>(*url.port));
  options.insecure = request.env.insecure;
  options.rank = request.rank;
  StorePtr store = *request.rank == 0 ? join_as_host(options) : connect_to_host(options, 0);
  return {std::move(store), *request.rank, *request.size};
}

}  // namespace cohort
