// SPDX-License-Identifier: BSD-3-Clause
//
// Broadcast.
//
//   small    the data goes with the root's post; the others copy it out.                 one wait for each rank
//   shared   all memory is memory of the group: rank r copies slice r to every rank, so that the root's memory is read
//            once, by all ranks together.                                                two waits
//   larger   an exchange (exchange.h) with one source
#include "backends/shm/backend.h"
#include "backends/shm/collectives/exchange.h"
#include "backends/shm/collectives/slices.h"
#include "reduce/copy.h"

namespace cohort::shm {

void LocalBackend::broadcast(const Operation& op, Call& call) {
  const auto data = op.out();
  const int root = op.root;
  Collective collective(engine_, op, call);
  if (data.size() <= post_bytes) {
    if (rank() == root) reduce::copy(collective.payload(data.size()), data.data(), data.size());
    collective.post();
    collective.await_all();
    if (rank() != root) reduce::copy(data.data(), collective.payload_of(root, data.size()), data.size());
    return;
  }
  // Every rank publishes where its buffer is: the root's is read, the others' may be written to.
  const ConstBytes offer(data);
  const OnlyFrom takes(size(), root, rank() == root ? Bytes() : data);
  Exchange exchange(engine_, collective, {&offer, 1}, 1, takes.get(), root);
  exchange.post();
  if (!is_shared_work(data.size(), size()) || !collective.all_reachable()) {
    exchange.move();
    return;
  }
  const Slices slices(data.size(), 1, size());
  constexpr std::size_t piece = 64 * kib;  // stays in the cache while it is copied to one rank after another
  for (auto at = slices.begin(rank()); at < slices.begin(rank() + 1); at += piece) {
    const auto bytes = std::min(piece, slices.begin(rank() + 1) - at);
    for (int each = 0; each < size(); ++each) {
      if (each != root) reduce::copy(exchange.place(each) + at, exchange.place(root) + at, bytes);
    }
  }
  collective.meet();
}

}  // namespace cohort::shm
