// SPDX-License-Identifier: BSD-3-Clause
//
// For last wills (TcpStore::set_on_disconnect) in keys of a store with prefixes.
#pragma once

#include <cohort/store.h>
#include <cohort/tcp_store.h>

#include <string>
#include <string_view>

namespace cohort {

/// The TcpStore below the store's prefixes; null if it is a store of another kind, which cannot have a last will.
TcpStore* tcp_store_below(const StorePtr& store);

/// The key with all prefixes of the store: a last will is carried out by the server, which knows no prefixes.
std::string full_key(const StorePtr& store, std::string_view key);

}  // namespace cohort
