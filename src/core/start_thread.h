// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cohort/error.h>

#include <system_error>
#include <thread>
#include <utility>

namespace cohort {

/// Throws a BackendError if the system has no thread to give (ulimit -u, ulimit -v).
template <class Body>
std::thread start_thread(Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& e) {
    throw BackendError(std::string("a helper thread could not be started: ") + e.what());
  }
}

}  // namespace cohort
