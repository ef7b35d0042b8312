// SPDX-License-Identifier: BSD-3-Clause
#include <cohort/error.h>

#include <cstring>
#include <vector>

#include "group/operation.h"
#include "reduce/kernels.h"

namespace cohort::detail {

namespace {

Reduction reduction_of(const Operation& operation, const void* in, void* out, std::size_t bytes) {
  return {.in = in,
          .out = out,
          .count = bytes / size_of(operation.dtype),
          .dtype = operation.dtype,
          .op = operation.reduce};
}

/// Several buffers of one rank: combined here first, in order, and the result copied to all of them at the end.
void all_reduce(Backend& backend, const Operation& operation, Call& call) {
  const auto first = operation.outs[0];
  if (operation.outs.size() > 1) {
    std::vector<const void*> sources;
    for (const auto& each : operation.outs) sources.push_back(each.data());
    const std::vector<double> factors(sources.size(), 1.0);
    void* const output = first.data();
    reduce::find_kernel(operation.dtype, operation.reduce.kind())(
        {.data = sources.data(), .factors = factors.data(), .count = sources.size()}, {.data = &output, .count = 1},
        first.size() / size_of(operation.dtype), 1);
  }
  backend.all_reduce(reduction_of(operation, first.data(), first.data(), first.size()), call);
  for (std::size_t i = 1; i < operation.outs.size(); ++i) {
    if (!first.empty()) std::memcpy(operation.outs[i].data(), first.data(), first.size());
  }
}

void perform_members(Backend& backend, const Operation& operation, Call& call) {
  backend.begin_batch(call);
  try {
    for (const auto& member : operation.members) perform(backend, member, call);
  } catch (...) {
    backend.cancel_batch(call);
    throw;
  }
  backend.end_batch(call);
}

}  // namespace

int perform(Backend& backend, const Operation& operation, Call& call) {
  const int root = operation.root_or_peer;
  switch (operation.type) {
    case OpType::all_reduce:
      all_reduce(backend, operation, call);
      break;
    case OpType::reduce: {
      const auto data = operation.outs[0];
      backend.reduce(reduction_of(operation, data.data(), backend.rank() == root ? data.data() : nullptr, data.size()),
                     root, call);
      break;
    }
    case OpType::broadcast:
      backend.broadcast(operation.outs[0], root, call);
      break;
    case OpType::all_gather:
    case OpType::all_gather_single:
      backend.all_gather(operation.ins[0], operation.outs, call);
      break;
    case OpType::gather:
      backend.gather(operation.ins[0], operation.outs, root, call);
      break;
    case OpType::scatter:
      backend.scatter(operation.ins, operation.outs[0], root, call);
      break;
    case OpType::reduce_scatter:
    case OpType::reduce_scatter_single: {
      const auto out = operation.outs[0];
      backend.reduce_scatter(operation.ins, reduction_of(operation, nullptr, out.data(), out.size()), call);
      break;
    }
    case OpType::all_to_all:
    case OpType::all_to_all_single:
      backend.all_to_all(operation.ins, operation.outs, call);
      break;
    case OpType::barrier:
      backend.barrier(call);
      break;
    case OpType::send:
      backend.send(operation.ins[0], root, operation.tag, call);
      break;
    case OpType::recv:
    case OpType::recv_any_source:
      return backend.recv(operation.outs[0], root, operation.tag, call);
    case OpType::all_reduce_coalesced:
    case OpType::all_gather_coalesced:
    case OpType::coalesced:
      perform_members(backend, operation, call);
      break;
    case OpType::unknown:
      throw AssertionError("an operation of no type");
  }
  return -1;
}

std::size_t bytes_of(const Operation& operation) {
  std::size_t bytes = 0;
  for (const auto& member : operation.members) bytes += bytes_of(member);
  for (const auto& in : operation.ins) bytes += in.size();
  if (operation.ins.empty()) {
    for (const auto& out : operation.outs) bytes += out.size();
  }
  return bytes;
}

}  // namespace cohort::detail
