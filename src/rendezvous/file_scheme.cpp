// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>
#include <cohort/file_store.h>

#include <fmt/format.h>

#include "rendezvous/schemes.h"

namespace cohort {

RendezvousResult file_scheme(const RendezvousRequest& request) {
  const auto url = parse_rendezvous_url(request.url);
  refuse_unknown_query(url, request.url);
  if (!url.host.empty()) {
    throw ValueError(
        fmt::format("rendezvous \"{}\": write three slashes before the path, as in file:///tmp/job", request.url));
  }
  if (url.path.empty() || url.path == "/") {
    throw ValueError(fmt::format("rendezvous \"{}\": the path is missing", request.url));
  }
  require_rank_and_size(request);
  return {std::make_shared<FileStore>(url.path, *request.size, request.timeout), *request.rank, *request.size};
}

}  // namespace cohort
