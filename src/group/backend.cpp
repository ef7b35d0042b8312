// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/backend.h>

#include <fmt/format.h>
#include <sched.h>

namespace cohort {

namespace {

/// Advances one transfer until it is done, for backends that have nothing better.
void complete(Backend& backend, Transfer& transfer, Call& call) {
  while (!transfer.advance()) {
    transfer.check();
    if (call.deadline().expired()) {
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

void Backend::all_reduce(const Reduction& /*reduction*/, Call& /*call*/) {
  refuse("all_reduce");
}
void Backend::reduce(const Reduction& /*reduction*/, int /*root*/, Call& /*call*/) {
  refuse("reduce");
}
void Backend::broadcast(Bytes /*data*/, int /*root*/, Call& /*call*/) {
  refuse("broadcast");
}
void Backend::all_gather(ConstBytes /*in*/, std::span<const Bytes> /*outs*/, Call& /*call*/) {
  refuse("all_gather");
}
void Backend::gather(ConstBytes /*in*/, std::span<const Bytes> /*outs*/, int /*root*/, Call& /*call*/) {
  refuse("gather");
}
void Backend::scatter(std::span<const ConstBytes> /*ins*/, Bytes /*out*/, int /*root*/, Call& /*call*/) {
  refuse("scatter");
}
void Backend::reduce_scatter(std::span<const ConstBytes> /*ins*/, const Reduction& /*reduction*/, Call& /*call*/) {
  refuse("reduce_scatter");
}
void Backend::all_to_all(std::span<const ConstBytes> /*ins*/, std::span<const Bytes> /*outs*/, Call& /*call*/) {
  refuse("all_to_all");
}
void Backend::barrier(Call& /*call*/) {
  refuse("barrier");
}
std::unique_ptr<Transfer> Backend::start_send(ConstBytes /*data*/, int /*peer*/, int /*tag*/, Call& /*call*/) {
  refuse("send");
}
std::unique_ptr<Transfer> Backend::start_recv(Bytes /*data*/, int /*peer_or_any*/, int /*tag*/, Call& /*call*/) {
  refuse("recv");
}
void Backend::send(ConstBytes data, int peer, int tag, Call& call) {
  complete(*this, *start_send(data, peer, tag, call), call);
}
int Backend::recv(Bytes data, int peer_or_any, int tag, Call& call) {
  const auto transfer = start_recv(data, peer_or_any, tag, call);
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
void Backend::prepare_shrink() {
  abort("shrink");
}
BackendShrunk Backend::shrink(std::span<const int> /*excluded*/, Deadline /*deadline*/) {
  refuse("shrink");
}
void Backend::check_request(const Request& /*request*/) const {}
void Backend::begin_batch(Call& /*call*/) {}
void Backend::end_batch(Call& /*call*/) {}
void Backend::cancel_batch(Call& /*call*/) noexcept {}
void Backend::abort(std::string_view /*reason*/) {}
void Backend::drain() {}
void Backend::shutdown() {}

}  // namespace cohort
