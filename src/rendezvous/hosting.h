// SPDX-License-Identifier: BSD-3-Clause
//
// Stores that this process hosts for its job. They live until the process ends, not until the first user is done: a
// rank that is ahead may already have come back to the server for the next rendezvous, and would keep a server that
// waits for everyone to leave waiting for ever.
#pragma once

#include <cohort/tcp_store.h>

namespace cohort {

/// A connection to the server at options.endpoint, which this process hosts: started now, or by an earlier rendezvous.
/// When the process exits with status 0, the server stays until the others have left, at most options.timeout.
StorePtr join_as_host(const TcpStoreOptions& options);

}  // namespace cohort
