// SPDX-License-Identifier: BSD-3-Clause
#include "backends/gloo/exchange.h"

#include "backends/gloo/slots.h"
#include "group/mismatch.h"

namespace cohort::gloo {

Exchange::~Exchange() {
  if (!messages_.empty()) mesh_.fail("a collective was given up");
}

std::unique_ptr<Message>& Exchange::message(const void* data, std::size_t bytes) {
  // Gloo does not write to memory that is sent, but its interface is not const.
  return messages_.emplace_back(mesh_.message(const_cast<void*>(data), bytes));
}

void Exchange::send(ConstBytes data, int to) {
  message(data.data(), data.size())->send(to, slot_of(Use::piece, digest_of({operation_, data.size()})), data.size());
}

void Exchange::recv(Bytes data, int from) {
  message(data.data(), data.size())->recv(from, slot_of(Use::piece, digest_of({operation_, data.size()})), data.size());
}

bool Exchange::finish(Deadline deadline) {
  for (const auto& each : messages_) {
    if (!each->is_done(deadline.when())) return false;
  }
  messages_.clear();
  return true;
}

}  // namespace cohort::gloo
