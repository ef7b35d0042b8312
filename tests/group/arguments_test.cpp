// SPDX-License-Identifier: BSD-3-Clause
//
// Arguments that are refused when the call is made: no sequence number is taken, no memory is touched, and the group
// stays usable.
#include <tuple>

#include "group/arrangements.h"

namespace cohort::test {
namespace {

/// Every operation with one of its buffers replaced by `bad`: first an output, then an input.
struct Attempt {
  const char* name;
  std::function<void(Operations&, const Buffer& bad)> call;
};

/// For `n` ranks. The other buffers have 4 floats for each rank.
std::vector<Attempt> attempts(std::vector<float>& part, std::vector<float>& whole, int rank, std::size_t n) {
  std::vector<Attempt> all;
  const auto add = [&](const char* name, std::function<void(Operations&, const Buffer&)> call) {
    all.push_back({name, std::move(call)});
  };
  const auto list = [&part, n](const Buffer& bad) {
    std::vector<Buffer> buffers(n, Buffer(part));
    buffers.back() = bad;
    return BufferList(buffers);
  };
  const auto const_list = [list](const Buffer& bad) { return ConstBufferList(list(bad)); };
  add("all_reduce", [](auto& pg, auto& bad) { pg.all_reduce(bad); });
  add("all_reduce", [&](auto& pg, auto& bad) { pg.all_reduce(BufferList{part, bad}); });
  add("all_reduce_coalesced", [&](auto& pg, auto& bad) { pg.all_reduce_coalesced(BufferList{part, bad}); });
  add("reduce", [](auto& pg, auto& bad) { pg.reduce(bad); });
  add("broadcast", [](auto& pg, auto& bad) { pg.broadcast(bad); });
  add("all_gather", [&](auto& pg, auto& bad) { pg.all_gather(bad, part); });
  add("all_gather", [&](auto& pg, auto& bad) { pg.all_gather(whole, bad); });
  add("all_gather", [&, list](auto& pg, auto& bad) { pg.all_gather(list(bad), part); });
  add("all_gather", [&, list](auto& pg, auto& bad) { pg.all_gather(list(Buffer(part)), bad); });
  add("all_gather_coalesced",
      [&](auto& pg, auto& bad) { pg.all_gather_coalesced(BufferList{bad}, ConstBufferList{part}); });
  add("all_gather_coalesced",
      [&](auto& pg, auto& bad) { pg.all_gather_coalesced(BufferList{whole}, ConstBufferList{bad}); });
  add("all_gather_coalesced", [&, n](auto& pg, auto& bad) {
    pg.all_gather_coalesced(std::vector<BufferList>(n, BufferList{bad}), ConstBufferList{part});
  });
  add("all_gather_coalesced", [&, n](auto& pg, auto& bad) {
    pg.all_gather_coalesced(std::vector<BufferList>(n, BufferList{part}), ConstBufferList{bad});
  });
  add("gather", [&, list, rank](auto& pg, auto& bad) { pg.gather(list(bad), part, {.root = rank}); });
  add("gather", [&, list, rank](auto& pg, auto& bad) { pg.gather(list(Buffer(part)), bad, {.root = rank}); });
  add("scatter", [&, const_list, rank](auto& pg, auto& bad) { pg.scatter(part, const_list(bad), {.root = rank}); });
  add("scatter",
      [&, const_list, rank](auto& pg, auto& bad) { pg.scatter(bad, const_list(Buffer(part)), {.root = rank}); });
  add("reduce_scatter", [&](auto& pg, auto& bad) { pg.reduce_scatter(bad, ConstBuffer(whole)); });
  add("reduce_scatter", [&](auto& pg, auto& bad) { pg.reduce_scatter(part, ConstBuffer(bad)); });
  add("reduce_scatter", [&, const_list](auto& pg, auto& bad) { pg.reduce_scatter(bad, const_list(Buffer(part))); });
  add("reduce_scatter", [&, const_list](auto& pg, auto& bad) { pg.reduce_scatter(part, const_list(bad)); });
  add("coalesced", [&](auto& pg, auto& bad) { pg.reduce_scatter_coalesced(BufferList{bad}, ConstBufferList{whole}); });
  add("coalesced", [&](auto& pg, auto& bad) { pg.reduce_scatter_coalesced(BufferList{part}, ConstBufferList{bad}); });
  add("all_to_all", [&](auto& pg, auto& bad) { pg.all_to_all(bad, ConstBuffer(whole)); });
  add("all_to_all", [&](auto& pg, auto& bad) { pg.all_to_all(whole, ConstBuffer(bad)); });
  add("all_to_all", [&, list, const_list](auto& pg, auto& bad) { pg.all_to_all(list(bad), const_list(Buffer(part))); });
  add("all_to_all", [&, list, const_list](auto& pg, auto& bad) { pg.all_to_all(list(Buffer(part)), const_list(bad)); });
  add("send", [](auto& pg, auto& bad) { pg.send(bad, 0); });
  add("recv", [](auto& pg, auto& bad) { pg.recv(bad, 0); });
  add("recv_any_source", [](auto& pg, auto& bad) { pg.recv_any_source(bad); });
  return all;
}

class Arguments : public OnEveryArrangement {
 protected:
  /// Each operation refuses `bad`, on its own and in a batch, and does not change `memory`.
  static void expect_all_refuse(ProcessGroup& pg, const Buffer& bad, const std::string& text) {
    std::vector<float> part(4, 1);
    std::vector<float> whole(4 * index(pg.size()), 1);
    for (const auto& attempt : attempts(part, whole, pg.rank(), index(pg.size()))) {
      SCOPED_TRACE(attempt.name);
      expect_refused<ValueError>(pg, text, [&] { attempt.call(pg, bad); });
      auto batch = pg.batch();
      expect_refused<ValueError>(pg, text, [&] { attempt.call(batch, bad); });
      EXPECT_EQ(batch.size(), 0U);
      EXPECT_THAT(message_of<ValueError>([&] { attempt.call(pg, bad); }), ::testing::HasSubstr(attempt.name));
    }
    EXPECT_EQ(part, std::vector<float>(4, 1));
    EXPECT_EQ(whole, std::vector<float>(whole.size(), 1));
    expect_works(pg);
  }
};

TEST_P(Arguments, StridedMemoryIsRefusedEverywhere) {
  run([](const ProcessGroupPtr& pg) {
    const std::vector<float> before(200, 7);
    auto memory = before;
    expect_all_refuse(*pg, Buffer(memory.data(), DType::f32, {2, 2}, {1, 2}), "strides [1, 2]");  // transposed
    expect_all_refuse(*pg, Buffer(memory.data(), DType::f32, {4}, {2}), "contiguous");  // every second element
    EXPECT_EQ(memory, before);
  });
}

TEST_P(Arguments, ANullAddressIsRefusedBeforeThereIsABuffer) {
  run([](const ProcessGroupPtr& pg) {
    expect_refused<ValueError>(*pg, "null", [&] { pg->all_reduce(Buffer(nullptr, DType::f32, {4})); });
    expect_refused<ValueError>(*pg, "null", [&] { pg->send(ConstBuffer(nullptr, DType::f32, {4}), 0); });
    expect_works(*pg);
  });
}

TEST_P(Arguments, RootsAndPeersAreRanksOfTheGroup) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = pg->size();
    const auto range = "0 to " + std::to_string(n - 1);
    std::vector<float> x(3);
    for (const int wrong : {-1, n, n + 7}) {
      const auto refused = [&](const std::function<void()>& call) {
        expect_refused<ValueError>(*pg, std::to_string(wrong) + " is not a rank of this group: " + range, call);
      };
      refused([&] { pg->broadcast(x, {.root = wrong}); });
      refused([&] { pg->reduce(x, {.root = wrong}); });
      refused([&] { pg->gather({}, x, {.root = wrong}); });
      refused([&] { pg->scatter(x, {}, {.root = wrong}); });
      refused([&] { pg->send(x, wrong); });
      refused([&] { pg->recv(x, wrong); });
      refused([&] { pg->send(x, wrong, {.async_op = true}); });
      refused([&] { pg->broadcast_bytes("", {.root = wrong}); });
    }
    expect_works(*pg);
  });
}

TEST_P(Arguments, TimeoutsArePositive) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<float> x(index(pg->size()));
    std::vector<float> y(1);
    const std::vector<std::vector<float>> parts(index(pg->size()), y);
    auto outputs = parts;
    const auto work = pg->barrier({.async_op = true});
    work.wait();
    for (const auto t :
         {std::chrono::milliseconds(0), std::chrono::milliseconds(-1), std::chrono::milliseconds::min()}) {
      const auto refused = [&](const std::function<void()>& call) {
        expect_refused<ValueError>(*pg, "must be positive", call);
      };
      for (const bool async : {false, true}) {
        refused([&] { pg->all_reduce(x, {.async_op = async, .timeout = t}); });
        refused([&] { pg->all_reduce({x, x}, {.async_op = async, .timeout = t}); });
        refused([&] { pg->all_reduce_coalesced({x, y}, {.async_op = async, .timeout = t}); });
        refused([&] { pg->reduce(x, {.async_op = async, .timeout = t}); });
        refused([&] { pg->broadcast(x, {.async_op = async, .timeout = t}); });
        refused([&] { pg->all_gather(x, y, {.async_op = async, .timeout = t}); });
        refused([&] { pg->all_gather(outputs, y, {.async_op = async, .timeout = t}); });
        refused([&] { pg->all_gather_coalesced(BufferList{x}, {y}, {.async_op = async, .timeout = t}); });
        refused([&] { pg->gather(outputs, y, {.root = pg->rank(), .async_op = async, .timeout = t}); });
        refused([&] { pg->scatter(y, parts, {.root = pg->rank(), .async_op = async, .timeout = t}); });
        refused([&] { pg->reduce_scatter(y, x, {.async_op = async, .timeout = t}); });
        refused([&] { pg->reduce_scatter(y, parts, {.async_op = async, .timeout = t}); });
        refused([&] { pg->reduce_scatter_coalesced({y}, {x}, {.async_op = async, .timeout = t}); });
        refused([&] { pg->all_to_all(x, x, {.async_op = async, .timeout = t}); });
        refused([&] { pg->all_to_all(outputs, parts, {.async_op = async, .timeout = t}); });
        refused([&] { pg->barrier({.async_op = async, .timeout = t}); });
        refused([&] { pg->send(x, 0, {.async_op = async, .timeout = t}); });
        refused([&] { pg->recv(x, 0, {.async_op = async, .timeout = t}); });
        refused([&] { pg->recv_any_source(x, {.async_op = async, .timeout = t}); });
        refused([&] {
          auto batch = pg->batch();
          batch.all_reduce(x);
          batch.run({.async_op = async, .timeout = t});
        });
      }
      refused([&] { pg->broadcast_bytes("x", {.timeout = t}); });
      refused([&] { pg->all_gather_bytes("x", {.timeout = t}); });
      refused([&] { pg->all_ok([] {}, t); });
      refused([&] { pg->monitored_barrier({.timeout = t}); });
      refused([&] { pg->split_group({0}, {.timeout = t}); });
      refused([&] { pg->shrink({.timeout = t}); });
      refused([&] { pg->merge_remote_group(pg->store(), 1, {.timeout = t}); });
      refused([&] { pg->set_timeout(t); });
      refused([&] { work.wait(t); });
      refused([&] { work.future().wait(t); });
    }
    expect_works(*pg);
  });
}

TEST_P(Arguments, TagsAreNotNegative) {
  run([](const ProcessGroupPtr& pg) {
    std::vector<float> x(3);
    for (const int tag : {-1, std::numeric_limits<int>::min()}) {
      expect_refused<ValueError>(*pg, "negative", [&] { pg->send(x, 0, {.tag = tag}); });
      expect_refused<ValueError>(*pg, "negative", [&] { pg->recv(x, 0, {.tag = tag}); });
      expect_refused<ValueError>(*pg, "negative", [&] { pg->recv_any_source(x, {.tag = tag}); });
    }
    try {
      const auto sending = pg->send(x, pg->rank(), {.tag = std::numeric_limits<int>::max(), .async_op = true});
      pg->recv(x, pg->rank(), {.tag = std::numeric_limits<int>::max()});
      sending.wait();
    } catch (const ValueError& e) {  // MPICH supports fewer tags
      EXPECT_EQ(pg->name(), "mpi");
      EXPECT_THAT(e.what(), ::testing::HasSubstr("tags go up to"));
    }
  });
}

TEST_P(Arguments, SizesAndTypesOfGathersAndScatters) {
  run([](const ProcessGroupPtr& pg) {
    const auto n = index(pg->size());
    const int rank = pg->rank();
    std::vector<float> part(4);
    std::vector<float> whole(4 * n);
    std::vector<float> longer(4 * n + 1);
    std::vector<double> doubles(4 * n);
    std::vector<std::vector<float>> list(n, part);
    std::vector<std::vector<float>> short_list(n - 1, part);
    std::vector<std::vector<float>> long_parts(n, std::vector<float>(5));
    std::vector<std::vector<double>> double_list(n, std::vector<double>(4));
    const auto wrong_size = [&](const std::function<void()>& call) { expect_refused<ValueError>(*pg, "", call); };
    const auto wrong_type = [&](const std::function<void()>& call) { expect_refused<TypeError>(*pg, "f64", call); };

    wrong_size([&] { pg->all_gather(longer, part); });
    wrong_type([&] { pg->all_gather(doubles, part); });
    wrong_size([&] { pg->all_gather(short_list, part); });
    wrong_size([&] { pg->all_gather(long_parts, part); });
    wrong_type([&] { pg->all_gather(double_list, part); });
    wrong_size([&] { pg->all_gather_coalesced(BufferList{longer}, ConstBufferList{part}); });
    wrong_size([&] { pg->all_gather_coalesced(BufferList{whole, whole}, ConstBufferList{part}); });
    wrong_size([&] { pg->all_gather_coalesced(BufferList{}, ConstBufferList{}); });
    wrong_type([&] { pg->all_gather_coalesced(BufferList{doubles}, ConstBufferList{part}); });
    const auto nested = [&](std::size_t lists, const BufferList& each, const ConstBuffer& input) {
      pg->all_gather_coalesced(std::vector<BufferList>(lists, each), ConstBufferList{input});
    };
    wrong_size([&] { nested(n + 1, BufferList{part}, part); });
    wrong_size([&] { nested(n, BufferList{part, part}, part); });
    wrong_size([&] { nested(n, BufferList{Buffer(part.data(), DType::f32, {2, 2})}, part); });  // another shape
    wrong_type([&] { nested(n, BufferList{Buffer(doubles.data(), DType::f64, {4})}, part); });

    wrong_size([&] { pg->gather(short_list, part, {.root = rank}); });
    wrong_size([&] { pg->gather(long_parts, part, {.root = rank}); });
    wrong_type([&] { pg->gather(double_list, part, {.root = rank}); });
    wrong_size([&] { pg->scatter(part, short_list, {.root = rank}); });
    wrong_size([&] { pg->scatter(part, long_parts, {.root = rank}); });
    wrong_type([&] { pg->scatter(part, double_list, {.root = rank}); });

    wrong_size([&] { pg->reduce_scatter(part, ConstBuffer(longer)); });
    wrong_size([&] { pg->reduce_scatter(part, short_list); });
    wrong_size([&] { pg->reduce_scatter(part, long_parts); });
    wrong_type([&] { pg->reduce_scatter(part, ConstBuffer(doubles)); });
    wrong_type([&] { pg->reduce_scatter(part, double_list); });
    wrong_size([&] { pg->reduce_scatter_coalesced(BufferList{part, part}, ConstBufferList{whole}); });
    wrong_size([&] { pg->reduce_scatter_coalesced(BufferList{part}, ConstBufferList{longer}); });
    expect_refused<TypeError>(*pg, "band",
                              [&] { pg->reduce_scatter(part, ConstBuffer(whole), {.op = ReduceOp::band()}); });
    expect_refused<TypeError>(*pg, "bxor", [&] { pg->reduce(part, {.op = ReduceOp::bxor()}); });
    expect_works(*pg);
  });
}

TEST_P(Arguments, OnlyTheRootTakesOrGivesTheList) {
  if (size() == 1) GTEST_SKIP() << "everybody is the root";
  run([](const ProcessGroupPtr& pg) {
    const auto n = index(pg->size());
    const int other = (pg->rank() + 1) % pg->size();
    std::vector<float> part(4);
    std::vector<std::vector<float>> list(n, part);
    expect_refused<ValueError>(*pg, "must pass none", [&] { pg->gather(list, part, {.root = other}); });
    expect_refused<ValueError>(*pg, "must pass none", [&] { pg->scatter(part, list, {.root = other}); });
    expect_refused<ValueError>(*pg, "a list of 0 buffers", [&] { pg->gather({}, part, {.root = pg->rank()}); });
    expect_refused<ValueError>(*pg, "a list of 0 buffers", [&] { pg->scatter(part, {}, {.root = pg->rank()}); });
    expect_works(*pg);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, Arguments, every_arrangement(), arrangement_name);

}  // namespace
}  // namespace cohort::test
