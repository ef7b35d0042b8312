// SPDX-License-Identifier: BSD-3-Clause
//
// Operations of groups on c10d's groups; from_c10d_groups_test.cpp has the groups and what is built on them.

#include <cohort/reduction.h>
#include <cohort/torch/c10d.h>
#include <cohort/torch/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <complex>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <initializer_list>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "torch/c10d/c10d_groups.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

using namespace std::chrono_literals;
using Kind = ReduceOp::Kind;

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

// --- reductions

template <class T>
struct RealOf {
  using Type = T;
};
template <class T>
struct RealOf<std::complex<T>> {
  using Type = T;
};

/// Small numbers, so that no product of three of them leaves any type.
template <class T>
T value(int rank, std::size_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    return (index(rank) + i) % 2 == 0;
  } else {
    using Real = typename RealOf<T>::Type;
    const auto small = static_cast<Real>(1 + (7 * index(rank) + 3 * i) % 5);
    if constexpr (std::is_same_v<T, Real>) {
      return small;
    } else {
      return T(small, static_cast<Real>(rank));
    }
  }
}

double factor(int rank) {
  return rank + 0.5;
}

template <class T>
T combined(Kind kind, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (kind == Kind::band) return static_cast<T>(a & b);
    if (kind == Kind::bor) return static_cast<T>(a | b);
    if (kind == Kind::bxor) return static_cast<T>(a ^ b);
  }
  if constexpr (std::is_arithmetic_v<T>) {
    if (kind == Kind::min) return std::min(a, b);
    if (kind == Kind::max) return std::max(a, b);
  }
  return kind == Kind::product ? static_cast<T>(a * b) : static_cast<T>(a + b);
}

/// What a serial program gets for element i.
template <class T>
T expected(Kind kind, int ranks, std::size_t i) {
  using Real = typename RealOf<T>::Type;
  T result{};
  for (int rank = 0; rank < ranks; ++rank) {
    T own = value<T>(rank, i);
    if (kind == Kind::premul_sum) own = static_cast<T>(own * static_cast<Real>(factor(rank)));
    result = rank == 0 ? own : combined(kind, result, own);
  }
  return kind == Kind::avg ? static_cast<T>(result / static_cast<Real>(ranks)) : result;
}

template <class T>
using Values = std::array<T, 6>;

template <class T>
Values<T> values_of(int rank) {
  Values<T> values;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value<T>(rank, i);
  return values;
}

/// For each rank a piece of as many elements as the rank's number.
template <class T>
std::vector<std::span<T>> cut_by_rank(T* data, std::size_t count, int ranks) {
  std::span<T> all(data, count);
  std::vector<std::span<T>> pieces;
  for (int rank = 0; rank < ranks; ++rank) {
    pieces.push_back(all.first(index(rank)));
    all = all.subspan(index(rank));
  }
  return pieces;
}

template <class T>
void expect_reductions(const ProcessGroupPtr& group, std::initializer_list<Kind> kinds) {
  const int ranks = group->size();
  const int rank = group->rank();
  const auto own = values_of<T>(rank);
  for (const auto kind : kinds) {
    SCOPED_TRACE(std::string(to_string(kind)) + " of " + std::string(to_string(dtype_of<T>)));
    const auto op = kind == Kind::premul_sum ? ReduceOp::premul_sum(factor(rank)) : ReduceOp(kind);
    Values<T> reduced;
    for (std::size_t i = 0; i < reduced.size(); ++i) reduced[i] = expected<T>(kind, ranks, i);

    auto x = own;
    group->all_reduce(x, {.op = op});
    EXPECT_EQ(x, reduced);

    const int root = ranks - 1;
    x = own;
    group->reduce(x, {.root = root, .op = op});
    EXPECT_EQ(x, rank == root ? reduced : own) << "the buffers of other ranks do not change";

    x = own;
    Values<T> room{};
    const auto out = std::span(room).first(index(rank));
    group->reduce_scatter(out, ConstBufferList(cut_by_rank(x.data(), x.size(), ranks)), {.op = op});
    const auto mine = cut_by_rank(reduced.data(), reduced.size(), ranks)[index(rank)];
    EXPECT_TRUE(std::equal(out.begin(), out.end(), mine.begin()));
    EXPECT_EQ(x, own);
  }
}

TEST(FromC10d, ReducesTheTypesOfC10d) {
  on_all([](const ProcessGroupPtr& group) {
    expect_reductions<float>(group, {Kind::sum, Kind::avg, Kind::product, Kind::min, Kind::max, Kind::premul_sum});
    expect_reductions<double>(group, {Kind::sum, Kind::avg, Kind::max, Kind::premul_sum});
    const auto of_integers = {Kind::sum, Kind::product, Kind::min, Kind::max, Kind::band, Kind::bor, Kind::bxor};
    expect_reductions<std::int8_t>(group, of_integers);
    expect_reductions<std::uint8_t>(group, of_integers);
    expect_reductions<std::int32_t>(group, of_integers);
    expect_reductions<std::int64_t>(group, of_integers);
    auto half = at::full({5}, 2.0 * group->rank() + 2, at::kHalf);
    group->all_reduce(half, {.op = ReduceOp::avg()});
    EXPECT_TRUE(at::equal(half, at::full({5}, group->size() + 1, at::kHalf)));
  });
}

TEST(FromC10d, ReducesOtherTypesByWayOfThose) {
  on_all([](const ProcessGroupPtr& group) {
    expect_reductions<bool>(group, {Kind::sum, Kind::product, Kind::min, Kind::max, Kind::band, Kind::bor, Kind::bxor});
    expect_reductions<std::complex<float>>(group, {Kind::sum, Kind::avg, Kind::premul_sum});
    expect_reductions<std::complex<double>>(group, {Kind::sum, Kind::avg, Kind::premul_sum});
    expect_reductions<std::uint32_t>(group, {Kind::sum, Kind::product, Kind::band, Kind::bor, Kind::bxor});
    std::vector<std::uint64_t> large{(std::uint64_t{1} << 63U) + 1};
    group->all_reduce(large);
    const auto ranks = static_cast<std::uint64_t>(group->size());
    EXPECT_EQ(large[0], (ranks << 63U) + ranks);
    EXPECT_ERROR(NotSupportedError, group->all_reduce(large, {.op = ReduceOp::max()}), "c10d has no max of u64");
  });
}

TEST(FromC10d, ReducesWithAFunctionOfTheProgram) {
  struct Longest {
    int length;
    int rank;
  };
  const Reduction<Longest> longest("longest", [](Longest& a, const Longest& b) {
    if (b.length > a.length) a = b;
  });
  on_all([&](const ProcessGroupPtr& group) {
    std::vector<Longest> x{{10 + group->rank(), group->rank()}, {10 - group->rank(), group->rank()}};
    group->all_reduce(x, {.op = longest});
    EXPECT_EQ(x[0].rank, group->size() - 1);
    EXPECT_EQ(x[1].rank, 0);
  });
}

TEST(FromC10d, ReducesTensorsAndListsInOneOperation) {
  on_all([](const ProcessGroupPtr& group) {
    const int ranks = group->size();
    const auto own = static_cast<float>(group->rank() + 1);
    const auto sum = static_cast<float>(ranks * (ranks + 1)) / 2;
    auto a = at::full({3, 4}, own);
    auto b = at::full({5}, own);
    group->all_reduce_coalesced({a, b});
    EXPECT_TRUE(at::equal(a, at::full({3, 4}, sum)));
    EXPECT_TRUE(at::equal(b, at::full({5}, sum)));

    std::vector<float> c(2, own);
    std::vector<float> d(2, 10 * own);
    group->all_reduce(BufferList{c, d}, {.async_op = true}).wait();
    EXPECT_EQ(c, std::vector<float>(2, 11 * sum));
    EXPECT_EQ(d, c);

    auto all = at::empty({ranks, 2});
    auto part = at::empty({3});
    group->reduce_scatter(part, at::full({ranks, 3}, own));
    group->all_gather(all, at::full({2}, own));
    EXPECT_TRUE(at::equal(part, at::full({3}, sum)));
    for (int rank = 0; rank < ranks; ++rank) EXPECT_TRUE(at::equal(all[rank], at::full({2}, rank + 1, at::kFloat)));

    auto batch = group->batch();
    auto first = at::full({2}, own);
    batch.all_reduce(first);
    batch.broadcast(all, {.root = ranks - 1});
    batch.run({.async_op = true}).wait();
    EXPECT_TRUE(at::equal(first, at::full({2}, sum)));

    auto transposed = at::arange(6, at::kFloat).view({2, 3}).t();
    group->all_reduce(transposed);
    EXPECT_TRUE(at::equal(transposed, ranks * at::arange(6, at::kFloat).view({2, 3}).t()));
  });
}

// --- moving data

template <class T>
T element(int number) {
  T made{};
  const auto bytes = std::as_writable_bytes(std::span(&made, 1));
  if constexpr (std::is_same_v<T, bool>) {
    made = number % 3 == 0;
  } else {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(17 * number + static_cast<int>(i));
  }
  return made;
}

template <class T>
bool are_equal(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class T>
void expect_moved(const ProcessGroupPtr& group) {
  const int ranks = group->size();
  const int rank = group->rank();
  const int root = ranks / 2;
  const auto n = index(ranks);
  const auto expect = [](const T& got, int number, const char* what) {
    EXPECT_TRUE(are_equal(got, element<T>(number))) << what << " of " << typeid(T).name();
  };
  // Element (from, to) is number 10 * from + to.
  std::array<T, 3> mine;
  for (int to = 0; to < ranks; ++to) mine[index(to)] = element<T>(10 * rank + to);
  const auto own = std::span<T>(mine).first(n);
  std::array<T, 9> memory;
  const auto all = std::span<T>(memory).first(n * n);
  const auto clear = [&] { std::fill(all.begin(), all.end(), element<T>(99)); };

  clear();
  if (rank == root) std::copy(own.begin(), own.end(), all.begin());
  group->broadcast(all.first(n), {.root = root});
  for (int to = 0; to < ranks; ++to) expect(all[index(to)], 10 * root + to, "broadcast");

  clear();
  group->all_gather(all, own);
  for (int i = 0; i < ranks * ranks; ++i) expect(all[index(i)], 10 * (i / ranks) + i % ranks, "all_gather");

  clear();
  std::vector<std::span<T>> places;
  for (std::size_t i = 0; i < n; ++i) places.push_back(all.subspan(i * n, n));
  group->gather(rank == root ? BufferList(places) : BufferList(), own, {.root = root});
  for (int i = 0; rank == root && i < ranks * ranks; ++i) {
    expect(all[index(i)], 10 * (i / ranks) + i % ranks, "gather");
  }

  clear();
  std::vector<std::span<T>> singles;
  for (std::size_t i = 0; i < n; ++i) singles.push_back(own.subspan(i, 1));
  group->scatter(all.first(1), rank == root ? ConstBufferList(singles) : ConstBufferList(), {.root = root});
  expect(all[0], 10 * root + rank, "scatter");

  clear();
  group->all_to_all(all.first(n), own);
  for (int from = 0; from < ranks; ++from) expect(all[index(from)], 10 * from + rank, "all_to_all");
}

struct Particle {
  std::array<float, 3> position;
  std::int16_t id;
  std::array<char, 2> unused;  // instead of padding, which would not be copied
};

TEST(FromC10d, MovesElementsOfEveryType) {
  on_all([](const ProcessGroupPtr& group) {
    expect_moved<float>(group);
    expect_moved<bool>(group);
    expect_moved<std::int16_t>(group);
    expect_moved<std::uint16_t>(group);
    expect_moved<std::uint64_t>(group);
    expect_moved<BFloat16>(group);
    expect_moved<std::complex<double>>(group);
    expect_moved<Particle>(group);
  });
}

TEST(FromC10d, MovesPiecesOfDifferentSizes) {
  on_all([](const ProcessGroupPtr& group) {
    const int ranks = group->size();
    const int rank = group->rank();
    // Rank r has r elements, so rank 0 has none.
    std::vector<double> own(index(rank), rank);
    std::vector<double> memory(6, -1);
    const auto pieces = cut_by_rank(memory.data(), memory.size(), ranks);
    const auto expect_gathered = [&](const char* what) {
      for (int each = 0; each < ranks; ++each) {
        EXPECT_EQ(std::vector<double>(pieces[index(each)].begin(), pieces[index(each)].end()),
                  std::vector<double>(index(each), each))
            << what;
      }
    };
    group->all_gather(BufferList(pieces), own);
    expect_gathered("all_gather");

    std::fill(memory.begin(), memory.end(), -1);
    const int root = ranks - 1;
    group->gather(rank == root ? BufferList(pieces) : BufferList(), own, {.root = root, .uneven = true});
    if (rank == root) expect_gathered("gather");

    // Rank r sends q rows to rank q, with its own number in them, and the last rank sends nothing.
    const bool is_last = rank == ranks - 1;
    std::vector<std::int64_t> sent;
    std::vector<std::int64_t> received;
    for (int each = 0; each < ranks; ++each) {
      sent.push_back(is_last ? 0 : each);
      received.push_back(each == ranks - 1 ? 0 : rank);
    }
    const auto in = at::full({std::accumulate(sent.begin(), sent.end(), std::int64_t{0}), 2}, rank, at::kInt);
    auto out = at::full({std::accumulate(received.begin(), received.end(), std::int64_t{0}), 2}, -1, at::kInt);
    group->all_to_all(out, in, {.output_splits = received, .input_splits = sent});
    for (std::int64_t row = 0; row < out.size(0); ++row) {
      EXPECT_TRUE(at::equal(out[row], at::full({2}, row / rank, at::kInt))) << row;
    }
  });
}

TEST(FromC10d, SynchronisesWhereThereIsNoData) {
  on_all([](const ProcessGroupPtr& group) {
    std::vector<float> none;
    const std::vector<std::span<float>> nothings(index(group->size()), std::span<float>());
    group->all_reduce(none);
    group->reduce(none);
    group->broadcast(none);
    group->all_gather(none, none);
    group->gather(group->rank() == 0 ? BufferList(nothings) : BufferList(), none);
    group->scatter(none, group->rank() == 0 ? ConstBufferList(nothings) : ConstBufferList());
    group->reduce_scatter(none, ConstBufferList(nothings));
    group->all_to_all(none, none);
    group->barrier();
    EXPECT_EQ(group->sequence_number(), 9U);
    EXPECT_EQ(group->all_gather_bytes(std::string(index(group->rank()), 'x')).back(),
              std::string(index(group->size() - 1), 'x'));
  });
}

// --- messages

TEST(FromC10d, MessagesAreMatchedByPeerAndTag) {
  for (const auto make : all_kinds) {
    with_kind(make, 2, [](const ProcessGroupPtr& group) {
      const int peer = 1 - group->rank();
      std::vector<int> first{1};
      std::vector<int> second{2};
      std::vector<int> empty;
      if (group->rank() == 0) {
        const auto a = group->send(first, peer, {.tag = 1, .async_op = true});
        const auto b = group->send(second, peer, {.tag = 2, .async_op = true});
        a.wait();
        b.wait();
        group->send(empty, peer);
        group->recv(first, peer, {.tag = 3});
        EXPECT_EQ(first, std::vector{3});
      } else {
        std::vector<int> x(1);
        group->recv(x, peer, {.tag = 2});
        EXPECT_EQ(x, second);
        group->recv(x, peer, {.tag = 1});
        EXPECT_EQ(x, first);
        group->recv(empty, peer);
        group->send(std::vector{3}, peer, {.tag = 3});
      }
    });
  }
}

TEST(FromC10d, ReceivesFromAnySource) {
  for (const auto make : all_kinds) {
    with_kind(make, 3, [](const ProcessGroupPtr& group) {
      if (group->rank() != 1) {
        group->send(std::vector{10 + group->rank()}, 1, {.tag = 4});
        return;
      }
      int sources = 0;
      for (const bool is_async : {false, true}) {
        std::vector<int> x(1);
        const auto work = group->recv_any_source(x, {.tag = 4, .async_op = is_async});
        work.wait();
        EXPECT_EQ(x[0], 10 + work.source_rank());
        sources += work.source_rank();
      }
      EXPECT_EQ(sources, 0 + 2);
    });
  }
}

TEST(FromC10d, RanksSendInARing) {
  on_all([](const ProcessGroupPtr& group) {
    const int ranks = group->size();
    if (ranks == 1) {
      std::vector<int> x(1);
      EXPECT_ERROR(NotSupportedError, group->send(x, 0), "does not support messages of a rank to itself");
      return;
    }
    const int left = (group->rank() + ranks - 1) % ranks;
    const auto mine = at::full({100000}, group->rank());
    auto theirs = at::full({100000}, -1, mine.options());
    auto batch = group->batch();
    batch.recv(theirs, left);
    batch.send(mine, (group->rank() + 1) % ranks);
    batch.run().wait();
    EXPECT_TRUE(at::equal(theirs, at::full({100000}, left, mine.options())));
  });
}

TEST(FromC10d, AReceiveThatTimedOutLeavesItsMessageToTheNext) {
  for (const auto make : all_kinds) {
    with_kind(make, 2, [](const ProcessGroupPtr& group) {
      std::vector<int> x(1, 7);
      if (group->rank() == 1) {
        EXPECT_ERROR(OperationTimeoutError, group->recv(x, 0, {.timeout = 50ms}),
                     "recv from rank 0 did not end within 50 ms: rank 0 has not sent it");
        EXPECT_THROW(group->recv(x, 0, {.async_op = true, .timeout = 50ms}).wait(), OperationTimeoutError);
        EXPECT_EQ(x[0], 7);
      }
      group->barrier();  // the group can still be used
      if (group->rank() == 0) {
        for (const int i : {1, 2, 3}) group->send(std::vector{i}, 1);
      } else {
        for (const int i : {1, 2, 3}) {
          group->recv(x, 0);
          EXPECT_EQ(x[0], i);
        }
      }
    });
  }
}

TEST(FromC10d, AMonitoredBarrierNamesTheMissingRank) {
  with_kind(all_kinds.front(), 3, [](const ProcessGroupPtr& group) {
    group->monitored_barrier();
    if (group->rank() == 1) return;
    EXPECT_ERROR(OperationTimeoutError, group->monitored_barrier({.timeout = 300ms, .wait_all_ranks = true}),
                 "rank 1 did not join");
  });
}

// --- failures

/// Rank 0 waits for rank 1, which calls nothing until `released`.
void with_absent_rank(const std::function<void(const ProcessGroupPtr& waiting)>& body,
                      const std::function<void(const ProcessGroupPtr& late)>& later = {}) {
  std::promise<void> released;
  auto may_go = released.get_future().share();
  with_c10d(
      all_kinds.front(), 2,
      [&](const C10dGroupPtr& theirs) {
        const auto group = from_c10d(theirs, patient);
        if (theirs->getRank() == 0) {
          body(group);
          released.set_value();
        } else {
          may_go.wait();
          if (later) later(group);
        }
      },
      5s);  // c10d's own: its destructor waits for what has not ended
}

TEST(FromC10d, AnAbortEndsWhatWaits) {
  with_absent_rank([](const ProcessGroupPtr& group) {
    std::vector<float> x(4);
    std::vector<float> y(4);
    const auto collective = group->all_reduce(x, {.async_op = true});
    const auto message = group->recv(y, 1, {.async_op = true});
    EXPECT_LT(time_of([&] {
                group->abort("enough");
                EXPECT_ERROR(AbortedError, collective.wait(), "rank 0 aborted the group: enough");
                EXPECT_ERROR(AbortedError, message.wait(), "rank 0 aborted the group: enough");
              }),
              4s);
  });
}

#ifdef COHORT_TEST_HAS_C10D_GLOO
// These two need a backend that does not end operations at the deadline, as gloo.
TEST(FromC10d, AMissingRankIsAnErrorInTimeAndEndsTheGroup) {
  with_absent_rank([](const ProcessGroupPtr& group) {
    std::vector<float> x(4);
    const auto took = time_of([&] {
      EXPECT_ERROR(OperationTimeoutError, group->all_reduce(x, {.timeout = 300ms}),
                   "all_reduce did not end within 300 ms, and c10d cannot take it back");
    });
    EXPECT_GE(took, 300ms);
    EXPECT_LT(took, 4s);
    EXPECT_ERROR(AbortedError, group->barrier(), "the group ended when all_reduce #1 missed its deadline");
    EXPECT_ERROR(AbortedError, group->send(x, 1), "the group ended when all_reduce #1 missed its deadline");
    try {
      group->broadcast(x, {.async_op = true}).wait();
      ADD_FAILURE();
    } catch (const AbortedError& e) {
      EXPECT_EQ(e.context().group, group->id());
      EXPECT_EQ(e.context().op, "broadcast");
      EXPECT_EQ(e.context().sequence, 3U);
    }
  });
}

TEST(FromC10d, WhatC10dDoesTooLateIsDoneOnCopies) {
  std::vector<float> x(4, 1);
  with_absent_rank(
      [&](const ProcessGroupPtr& group) {
        EXPECT_THROW(group->all_reduce(x, {.timeout = 100ms}), OperationTimeoutError);
        std::fill(x.begin(), x.end(), 5.0F);
      },
      [](const ProcessGroupPtr& group) {
        std::vector<float> y(4, 2);
        group->all_reduce(y);
        EXPECT_EQ(y, std::vector<float>(4, 3));
      });
  EXPECT_EQ(x, std::vector<float>(4, 5));
}

TEST(FromC10d, ErrorsOfC10dSayWhatFailed) {
  with_c10d(make_gloo, 2, [](const C10dGroupPtr& theirs) {
    const auto group = from_c10d(theirs, patient);
    auto x = at::ones({2}, at::kShort);
    EXPECT_ERROR(BackendError, group->all_reduce(x),
                 "all_reduce #1 (sum of i16) failed in c10d/gloo: Invalid scalar type");
    EXPECT_ERROR(AbortedError, group->barrier(), "the group ended when all_reduce #1 (sum of i16) failed");
  });
}
#endif

}  // namespace
}  // namespace cohort::test
