// SPDX-License-Identifier: BSD-3-Clause
//
// The engines of a group whose ranks are threads, for tests of what is built on them.
#pragma once

#include <cohort/memory.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/shm/bootstrap/bootstrap.h"
#include "backends/shm/engine.h"
#include "support/ranks.h"

namespace cohort::test {

/// Hands the root's ticket to the other ranks.
class TicketDesk {
 public:
  shm::ExchangeTicket exchange() {
    return [this, given = given_](std::string_view ticket) {
      if (!ticket.empty()) ticket_.set_value(std::string(ticket));
      return given.get();
    };
  }

 private:
  std::promise<std::string> ticket_;
  std::shared_future<std::string> given_ = ticket_.get_future().share();
};

/// `change` is called with what each engine is made of.
inline void with_engines(int size, const std::function<void(shm::Engine&)>& body,
                         const std::function<void(shm::EngineParts&)>& change = {}) {
  TicketDesk desk;
  as_threads(size, [&](int rank) {
    auto parts = shm::bootstrap_threads({.name = "thread",
                                         .group = "tested",
                                         .rank = rank,
                                         .size = size,
                                         .deadline = Deadline::after(std::chrono::seconds(60)),
                                         .exchange = desk.exchange()});
    if (change) change(parts);
    shm::Engine engine(std::move(parts));
    body(engine);
  });
}

/// What one rank gives to another.
inline std::vector<std::byte> gift(int from, int to, std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    all[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<std::size_t>(from * 31 + to * 5));
  }
  return all;
}

}  // namespace cohort::test
