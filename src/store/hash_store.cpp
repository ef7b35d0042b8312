// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/hash_store.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "store/reply.h"
#include "store/table.h"

namespace cohort {

struct HashStore::State {
  std::mutex mutex;
  Table table;
};

HashStore::HashStore() : state_(std::make_unique<State>()) {}
HashStore::~HashStore() = default;

StoreReply HashStore::execute(const StoreRequest& request, Deadline deadline) {
  // Each call has its own condition, so that a change wakes the calls it completes and no others.
  struct Call {
    std::condition_variable answered;
    bool is_answered = false;
    wire::Status status = wire::Status::ok;
    StoreReply reply{};
  } call;
  std::unique_lock lock(state_->mutex);
  Table::Caller caller(state_->table, [&call](const wire::Reply& reply) {
    call.status = reply.status;
    call.reply = owned(reply);
    call.is_answered = true;
    call.answered.notify_one();
  });
  caller.execute(request);
  const auto is_answered = [&call] { return call.is_answered; };
  if (deadline.is_never()) {
    call.answered.wait(lock, is_answered);
  } else if (!call.answered.wait_until(lock, deadline.when(), is_answered)) {
    caller.cancel();
  }
  if (call.status != wire::Status::ok) {
    throw_store_error(request, call.status, {call.reply.values.begin(), call.reply.values.end()});
  }
  return std::move(call.reply);
}

}  // namespace cohort
