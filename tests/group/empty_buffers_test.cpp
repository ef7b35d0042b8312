// SPDX-License-Identifier: BSD-3-Clause
//
// Empty buffers, with and without an address: every operation accepts them, and still synchronises.
#include <atomic>

#include "group/arrangements.h"
#include "group/payload.h"

namespace cohort::test {
namespace {

class EmptyBuffers : public OnEveryArrangement {};

void every_operation(ProcessGroup& pg, const Buffer& none) {
  const auto n = index(pg.size());
  const BufferList list(std::vector<Buffer>(n, none));
  const ConstBufferList const_list(std::vector<Buffer>(n, none));
  const bool is_root = pg.rank() == pg.size() - 1;
  const int root = pg.size() - 1;
  const auto first = pg.sequence_number();
  pg.all_reduce(none);
  pg.all_reduce(BufferList{none, none});
  pg.all_reduce_coalesced(BufferList{none, none});
  pg.reduce(none, {.root = root});
  pg.broadcast(none, {.root = root});
  pg.all_gather(none, none);
  pg.all_gather(list, none);
  pg.all_gather_coalesced(std::vector<BufferList>(n, BufferList{none}), ConstBufferList{none});
  pg.all_gather_coalesced(BufferList{none}, ConstBufferList{none});
  pg.gather(is_root ? list : BufferList(), none, {.root = root});
  pg.scatter(none, is_root ? const_list : ConstBufferList(), {.root = root});
  pg.reduce_scatter(none, const_list);
  pg.reduce_scatter(none, ConstBuffer(none));
  pg.reduce_scatter_coalesced(BufferList{none}, ConstBufferList{none});
  pg.all_to_all(none, ConstBuffer(none));
  pg.all_to_all(list, const_list);
  EXPECT_EQ(pg.sequence_number(), first + 16);
  for (int peer = 0; peer < pg.size(); ++peer) {
    const auto sending = pg.send(none, peer, {.tag = 4, .async_op = true});
    const auto receiving = pg.recv(none, peer, {.tag = 4, .async_op = true});
    sending.wait();
    receiving.wait();
    EXPECT_EQ(receiving.source_rank(), peer);
  }
  const auto sending = pg.send(none, (pg.rank() + 1) % pg.size(), {.tag = 5, .async_op = true});
  EXPECT_EQ(pg.recv_any_source(none, {.tag = 5}).source_rank(), (pg.rank() + pg.size() - 1) % pg.size());
  sending.wait();
  expect_works(pg);
}

TEST_P(EmptyBuffers, WorkInEveryOperation) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<float> some(8, 3);
    const Memory shared(*pg, Place::group, 64);
    every_operation(*pg, Buffer(nullptr, DType::f32, {0}));
    every_operation(*pg, Buffer(some.data(), DType::f32, {0}));
    every_operation(*pg, Buffer(some.data(), DType::f32, {0, 3, 2}));
    every_operation(*pg, Buffer(shared.data(), DType::i16, {0}));
    // Group memory on some ranks, a null address on the others.
    every_operation(*pg, pg->rank() % 2 == 0 ? Buffer(shared.data(), DType::u8, {0}) : Buffer(nullptr, DType::u8, {0}));
    EXPECT_EQ(some, std::vector<float>(8, 3));
  });
}

TEST(EmptyBuffersOrder, TheOperationStillSynchronises) {
  std::atomic<int> entered{0};
  with_threads(3, [&](const ProcessGroupPtr& pg) {
    std::vector<float> none;
    const auto check = [&](const std::function<void()>& operation) {
      pg->barrier();
      entered = 0;
      pg->barrier();
      ++entered;
      operation();
      EXPECT_EQ(entered, 3);
      pg->barrier();
    };
    check([&] { pg->all_reduce(none); });
    check([&] { pg->all_gather(none, none); });
    check([&] { pg->all_to_all(none, ConstBuffer(none)); });
    check([&] { pg->reduce_scatter(none, ConstBuffer(none)); });
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, EmptyBuffers, every_arrangement(), arrangement_name);

}  // namespace
}  // namespace cohort::test
