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

/// rendezvous() without tell_launcher().
RendezvousResult meet(std::string_view url, const RendezvousOptions& options);
/// Tells the launcher, if it has the store, that the ranks have met: from then on it replaces those that are lost.
/// Before, it can only start all of them again.
void tell_launcher(const RendezvousResult& met, const Env& env);

/// Throws a ValueError that names what is missing unless the URL or the options give both rank and size.
void require_rank_and_size(const RendezvousRequest& request);
/// Throws ValueError if the URL has a parameter other than rank and world_size.
void refuse_unknown_query(const RendezvousUrl& url, const std::string& text);
/// Options with the secret, TLS and timeout that the environment and the request give for a store on TCP or a unix
/// socket.
TcpStoreOptions protected_options(const RendezvousRequest& request, const std::string& secret_file);

}  // namespace cohort
