// SPDX-License-Identifier: BSD-3-Clause
#include "core/random.h"

#include <cohort/error.h>

#include <fmt/format.h>
#include <pthread.h>
#include <sys/random.h>

#include <cerrno>
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

namespace {

ProcessNonce& nonce_of_process() {
  static ProcessNonce nonce = [] {
    ProcessNonce made{};
    fill_random(std::as_writable_bytes(std::span(made)));
    return made;
  }();
  return nonce;
}

// There is no mutex, because another thread could hold it at the moment of a fork and the child would wait for it for
// ever. The nonce is made before a fork; after it the child, which has one thread, makes its own.
int register_fork_handlers() noexcept {
  return ::pthread_atfork([] { nonce_of_process(); }, nullptr,
                          [] { fill_random(std::as_writable_bytes(std::span(nonce_of_process()))); });
}
const int fork_handlers = register_fork_handlers();

}  // namespace

ProcessNonce process_nonce() {
  static_cast<void>(fork_handlers);
  return nonce_of_process();
}

}  // namespace cohort
