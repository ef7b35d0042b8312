// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/backend.h>

#include <fmt/format.h>
#include <sched.h>

#include "group/perform.h"

namespace cohort {

namespace {

/// Advances one transfer until it is done, for backends without a blocking send or receive of their own.
void complete(Backend& backend, Transfer& transfer, Call& call) {
  while (!transfer.advance()) {
    transfer.check();
    if (call.deadline().expired()) {
      transfer.miss_deadline();
      throw OperationTimeoutError(
          fmt::format("{} did not end within {} ms", to_string(call.op()), call.timeout().count()),
          {.op = std::string(to_string(call.op())), .sequence = call.sequence()});
    }
    backend.rest(call.deadline());
  }
}

}  // namespace

Backend::~Backend() = default;

void Backend::refuse(std::string_view what) const {
  throw NotSupportedError(fmt::format("backend {} does not support {}", name_, what), {.op = std::string(what)});
}

int Backend::perform(const Operation& op, Call& call) {
  switch (op.type) {
    case OpType::all_reduce:
      all_reduce(op, call);
      break;
    case OpType::reduce:
      reduce(op, call);
      break;
    case OpType::broadcast:
      broadcast(op, call);
      break;
    case OpType::all_gather:
    case OpType::all_gather_single:
      all_gather(op, call);
      break;
    case OpType::gather:
      gather(op, call);
      break;
    case OpType::scatter:
      scatter(op, call);
      break;
    case OpType::reduce_scatter:
    case OpType::reduce_scatter_single:
      reduce_scatter(op, call);
      break;
    case OpType::all_to_all:
    case OpType::all_to_all_single:
      all_to_all(op, call);
      break;
    case OpType::barrier:
      barrier(op, call);
      break;
    case OpType::send:
      send(op, call);
      break;
    case OpType::recv:
    case OpType::recv_any_source:
      return recv(op, call);
    case OpType::all_reduce_coalesced:
    case OpType::all_gather_coalesced:
    case OpType::coalesced:
      begin_batch(call);
      try {
        for (const auto& member : op.members) detail::perform(*this, member, call);
      } catch (...) {
        cancel_batch(call);
        throw;
      }
      end_batch(call);
      break;
    case OpType::unknown:
      throw AssertionError("an operation without a type");
  }
  return -1;
}

void Backend::all_reduce(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
void Backend::reduce(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
void Backend::broadcast(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
void Backend::all_gather(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
void Backend::gather(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
void Backend::scatter(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
void Backend::reduce_scatter(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
void Backend::all_to_all(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
void Backend::barrier(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
std::unique_ptr<Transfer> Backend::start_send(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
std::unique_ptr<Transfer> Backend::start_recv(const Operation& op, Call& /*call*/) {
  refuse(to_string(op.type));
}
void Backend::send(const Operation& op, Call& call) {
  complete(*this, *start_send(op, call), call);
}
int Backend::recv(const Operation& op, Call& call) {
  const auto transfer = start_recv(op, call);
  complete(*this, *transfer, call);
  return transfer->source();
}
void Backend::rest(Deadline /*until*/) {
  ::sched_yield();
}
GroupMemory Backend::allocate(std::size_t /*bytes*/) {
  refuse("memory of the group");
}
BackendPtr Backend::split(const BackendSplit& /*split*/, Deadline /*deadline*/) {
  refuse("split_group");
}
BackendPtr Backend::partition(std::span<const BackendSplit> parts, Deadline deadline) {
  BackendPtr mine;
  for (const auto& part : parts) {
    if (auto made = split(part, deadline)) mine = std::move(made);
  }
  return mine;
}
void Backend::prepare_shrink() {
  abort("shrink");
}
BackendShrunk Backend::shrink(std::span<const int> /*excluded*/, Deadline /*deadline*/) {
  refuse("shrink");
}
std::vector<int> Backend::lost_among(std::span<const int> /*ranks*/) {
  return {};
}
void Backend::check_arguments(const Operation& /*op*/) const {}
void Backend::begin_batch(Call& /*call*/) {}
void Backend::end_batch(Call& /*call*/) {}
void Backend::cancel_batch(Call& /*call*/) noexcept {}
void Backend::abort(std::string_view /*reason*/) {}
bool Backend::drain(Deadline /*deadline*/) {
  return true;
}
void Backend::shutdown(Deadline /*deadline*/) {}

}  // namespace cohort
