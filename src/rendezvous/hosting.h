// SPDX-License-Identifier: BSD-3-Clause
//
// Stores that this process hosts for its job. They live until the process ends, not only until the rendezvous that made
// them is over: a rank that is ahead may already be connected again for the next rendezvous, and a server that waited
// for everyone to leave would wait for it without end.
#pragma once

#include <cohort/tcp_store.h>

namespace cohort {

/// Connects to the server at options.endpoint, which this process hosts, and starts it unless an earlier rendezvous
/// did. When the process exits with status 0, it waits until the other processes have left the server, at most
/// options.timeout.
StorePtr join_as_host(const TcpStoreOptions& options);

}  // namespace cohort
