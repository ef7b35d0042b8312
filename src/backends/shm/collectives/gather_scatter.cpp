// SPDX-License-Identifier: BSD-3-Clause
//
// Gather, and scatter, which is the same in the opposite direction.
//
//   small    the pieces go with the posts; the takers copy them out.                     one wait for each rank
//   larger   an exchange (exchange.h) with one taker, or one source
#include "backends/shm/backend.h"
#include "backends/shm/collectives/exchange.h"
#include "core/rank_index.h"
#include "reduce/copy.h"

namespace cohort::shm {

void LocalBackend::gather(const Operation& op, Call& call) {
  const auto in = op.in();
  const auto& outs = op.outs;
  const int root = op.root;
  Collective collective(engine_, op, call);
  if (rank() == root) copy_own(outs[index_of(rank())], in);
  if (in.size() <= post_bytes) {
    if (rank() != root) reduce::copy(collective.payload(in.size()), in.data(), in.size());
    collective.post();
    collective.await_all();
    if (rank() != root) return;
    for (int each = 0; each < size(); ++each) {
      const auto out = outs[index_of(each)];
      if (each != rank()) reduce::copy(out.data(), collective.payload_of(each, out.size()), out.size());
    }
    return;
  }
  const bool offers = rank() != root;
  Exchange(engine_, collective, {&in, offers ? 1U : 0U}, 1, outs).run();
}

void LocalBackend::scatter(const Operation& op, Call& call) {
  const auto& ins = op.ins;
  const auto out = op.out();
  const int root = op.root;
  Collective collective(engine_, op, call);
  const auto total = out.size() * index_of(size());
  if (rank() == root) copy_own(out, ins[index_of(rank())]);
  if (total <= post_bytes) {
    if (rank() == root) {
      auto* to = collective.payload(total);
      for (const auto& in : ins) {
        reduce::copy(to, in.data(), in.size());
        to += in.size();
      }
    }
    collective.post();
    collective.await_all();
    if (rank() == root) return;
    reduce::copy(out.data(), collective.payload_of(root, total) + index_of(rank()) * out.size(), out.size());
    return;
  }
  const auto lanes = index_of(size());
  if (rank() == root) {
    Exchange(engine_, collective, ins, lanes, {}).run();
  } else {
    Exchange(engine_, collective, {}, lanes, OnlyFrom(size(), root, out).get()).run();
  }
}

}  // namespace cohort::shm
