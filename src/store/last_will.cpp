// SPDX-License-Identifier: BSD-3-Clause
#include "store/last_will.h"

#include <cohort/prefix_store.h>

#include <fmt/format.h>

namespace cohort {

TcpStore* tcp_store_below(const StorePtr& store) {
  const auto* const prefixed = dynamic_cast<PrefixStore*>(store.get());
  return dynamic_cast<TcpStore*>(prefixed == nullptr ? store.get() : prefixed->underlying_non_prefix_store().get());
}

std::string full_key(const StorePtr& store, std::string_view key) {
  std::string full(key);
  auto below = store;
  while (const auto prefixed = std::dynamic_pointer_cast<PrefixStore>(below)) {
    full = fmt::format("{}/{}", prefixed->prefix(), full);
    below = prefixed->underlying_store();
  }
  return full;
}

}  // namespace cohort
