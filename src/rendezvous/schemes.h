// SPDX-License-Identifier: BSD-3-Clause
//
// The built-in schemes of rendezvous(), one file each.
#pragma once

#include <cohort/rendezvous.h>
#include <cohort/tcp_store.h>

#include "rendezvous/url.h"

namespace cohort {

RendezvousResult env_scheme(const RendezvousRequest& request);
RendezvousResult tcp_scheme(const RendezvousRequest& request);
RendezvousResult file_scheme(const RendezvousRequest& request);

/// Shared by the schemes: the rank and size that URL or options must give. ValueError naming what is missing or out of
/// range.
void require_rank_and_size(const RendezvousRequest& request);
/// Refuses parameters that the scheme does not know.
void refuse_unknown_query(const RendezvousUrl& url, const std::string& text);
/// Secret, TLS and timeouts that environment and request give for a store on TCP or a unix socket.
TcpStoreOptions protected_options(const RendezvousRequest& request, const std::string& secret_file);

}  // namespace cohort
