// SPDX-License-Identifier: BSD-3-Clause
#include "core/random.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <system_error>

namespace cohort {

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const auto n = ::getrandom(bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(fmt::format("getrandom: {}", std::generic_category().message(errno)));
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

ProcessNonce process_nonce() {
  static std::mutex mutex;
  static pid_t owner = 0;
  static ProcessNonce nonce{};
  const std::lock_guard lock(mutex);
  if (owner != ::getpid()) {
    fill_random(std::as_writable_bytes(std::span(nonce)));
    owner = ::getpid();
  }
  return nonce;
}

}  // namespace cohort
