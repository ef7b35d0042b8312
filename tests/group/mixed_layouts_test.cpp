// SPDX-License-Identifier: BSD-3-Clause
//
// Where the memory of an operation lies is each rank's own business: pieces that are adjacent on one rank, scattered or
// unaligned on another and in place on a third, some of them empty. Nothing of this may choose how ranks communicate.
#include <numeric>

#include "group/arrangements.h"
#include "group/payload.h"

namespace cohort::test {
namespace {

class MixedLayouts : public OnEveryArrangement {};

/// The layouts that ranks have in one round: rank r has layout (r + round) % 5.
enum class Layout { adjacent, scattered, backwards, unaligned, shared };
constexpr int layouts = 5;

/// Pieces of the given numbers of floats, as lists of buffers in one of the layouts.
class Pieces {
 public:
  Pieces(ProcessGroup& pg, Layout layout, const std::vector<std::size_t>& counts)
      : counts_(counts),
        memory_(pg, layout == Layout::shared ? Place::group : Place::ordinary, floats(counts) * sizeof(float),
                layout == Layout::unaligned ? 4 : 0) {
    std::vector<std::size_t> order(counts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (layout == Layout::backwards) std::reverse(order.begin(), order.end());
    pieces_.resize(counts.size());
    std::size_t at = 0;
    for (const auto i : order) {
      pieces_[i] = reinterpret_cast<float*>(memory_.data()) + at;
      at += counts[i] + (layout == Layout::scattered ? 3 : 0);
    }
  }
  std::span<float> operator[](int rank) const { return {pieces_[index(rank)], counts_[index(rank)]}; }
  Buffer buffer(int rank) const {
    const auto piece = (*this)[rank];
    return {piece.data(), DType::f32, {static_cast<std::int64_t>(piece.size())}};
  }
  BufferList list() const {
    std::vector<Buffer> all;
    for (std::size_t i = 0; i < counts_.size(); ++i) all.push_back(buffer(static_cast<int>(i)));
    return BufferList(all);
  }
  ConstBufferList const_list() const {
    std::vector<Buffer> all;
    for (std::size_t i = 0; i < counts_.size(); ++i) all.push_back(buffer(static_cast<int>(i)));
    return ConstBufferList(all);
  }
  void fill(float value) const {
    for (std::size_t i = 0; i < counts_.size(); ++i) std::ranges::fill((*this)[static_cast<int>(i)], value);
  }

 private:
  static std::size_t floats(const std::vector<std::size_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) + 3 * counts.size();
  }

  std::vector<std::size_t> counts_;
  Memory memory_;
  std::vector<float*> pieces_;
};

void expect_all(std::span<const float> piece, float value, const std::string& what) {
  for (const float each : piece) ASSERT_EQ(each, value) << what;
}

/// Sizes that all ranks know: equal ones, and uneven ones with empty pieces.
std::vector<std::vector<std::size_t>> sizes_of_pieces(int ranks) {
  std::vector<std::vector<std::size_t>> all;
  for (const std::size_t each : {0U, 1U, 300U, 40'000U}) all.emplace_back(index(ranks), each);
  std::vector<std::size_t> uneven(index(ranks));
  for (std::size_t i = 0; i < uneven.size(); ++i) uneven[i] = i % 3 == 1 ? 0 : 5 + 700 * i;
  all.push_back(uneven);
  std::vector<std::size_t> only_last(index(ranks), 0);
  only_last.back() = 9;
  all.push_back(only_last);
  return all;
}

template <class Body>
void on_all_layouts(const ProcessGroupPtr& pg, const Body& body) {
  for (int round = 0; round < layouts; ++round) {
    const auto layout = static_cast<Layout>((pg->rank() + round) % layouts);
    for (const auto& counts : sizes_of_pieces(pg->size())) body(layout, counts, round);
  }
}

TEST_P(MixedLayouts, GatherToAll) {
  run([](const ProcessGroupPtr& pg) {
    on_all_layouts(pg, [&](Layout layout, const std::vector<std::size_t>& counts, int round) {
      const Pieces out(*pg, layout, counts);
      out.fill(-1);
      const bool is_in_place = (pg->rank() + round) % 2 == 0;
      const std::vector<float> apart(counts[index(pg->rank())], static_cast<float>(pg->rank() + 1));
      std::ranges::fill(out[pg->rank()], is_in_place ? static_cast<float>(pg->rank() + 1) : -1.0F);
      is_in_place ? pg->all_gather(out.list(), out.buffer(pg->rank())) : pg->all_gather(out.list(), apart);
      for (int each = 0; each < pg->size(); ++each) {
        expect_all(out[each], static_cast<float>(each + 1), "all_gather of a list");
      }
    });
  });
}

TEST_P(MixedLayouts, GatherAListWhereOthersGatherOneBuffer) {
  run([](const ProcessGroupPtr& pg) {
    for (const std::size_t each : {0U, 2U, 20'000U}) {
      const std::vector<float> mine(each, static_cast<float>(pg->rank()));
      const Pieces out(*pg, Layout::backwards, std::vector<std::size_t>(index(pg->size()), each));
      std::vector<float> whole(index(pg->size()) * each);
      pg->rank() % 2 == 0 ? pg->all_gather(out.list(), mine) : pg->all_gather(whole, mine);
      for (int from = 0; from < pg->size(); ++from) {
        const auto got = pg->rank() % 2 == 0 ? std::span<const float>(out[from])
                                             : std::span<const float>(whole).subspan(index(from) * each, each);
        expect_all(got, static_cast<float>(from), "all_gather in two forms");
      }
    }
  });
}

TEST_P(MixedLayouts, ReduceAndScatter) {
  run([](const ProcessGroupPtr& pg) {
    const auto sum = static_cast<float>(pg->size() * (pg->size() + 1)) / 2;
    on_all_layouts(pg, [&](Layout layout, const std::vector<std::size_t>& counts, int round) {
      const Pieces in(*pg, layout, counts);
      in.fill(static_cast<float>(pg->rank() + 1));
      const bool is_in_place = (pg->rank() + round) % 2 == 0;
      std::vector<float> apart(counts[index(pg->rank())], -1);
      is_in_place ? pg->reduce_scatter(in.buffer(pg->rank()), in.const_list())
                  : pg->reduce_scatter(apart, in.const_list());
      expect_all(is_in_place ? in[pg->rank()] : std::span<float>(apart), sum, "reduce_scatter of a list");
    });
  });
}

TEST_P(MixedLayouts, ExchangePieces) {
  run([](const ProcessGroupPtr& pg) {
    on_all_layouts(pg, [&](Layout layout, const std::vector<std::size_t>& counts, int round) {
      // Rank r sends counts[r] floats to every rank, from pieces that lie elsewhere than those that it receives into.
      const auto other = static_cast<Layout>((pg->rank() + round + 2) % layouts);
      const Pieces in(*pg, other, std::vector<std::size_t>(index(pg->size()), counts[index(pg->rank())]));
      const Pieces out(*pg, layout, counts);
      in.fill(static_cast<float>(pg->rank() + 1));
      out.fill(-1);
      pg->all_to_all(out.list(), in.const_list());
      for (int each = 0; each < pg->size(); ++each) {
        expect_all(out[each], static_cast<float>(each + 1), "all_to_all of a list");
      }
    });
  });
}

TEST_P(MixedLayouts, GatherAndScatterAtARoot) {
  run([](const ProcessGroupPtr& pg) {
    for (int round = 0; round < layouts; ++round) {
      const int root = round % pg->size();
      for (const std::size_t each : {0U, 1U, 300U, 40'000U}) {
        const Pieces all(*pg, static_cast<Layout>(round), std::vector<std::size_t>(index(pg->size()), each));
        const bool is_root = pg->rank() == root;
        all.fill(-1);
        std::vector<float> mine(each, static_cast<float>(pg->rank() + 1));
        std::ranges::fill(all[root], static_cast<float>(root + 1));
        const bool is_in_place = is_root && round % 2 == 0;
        const auto piece = is_in_place ? all.buffer(root) : Buffer(mine.data(), DType::f32, {static_cast<int>(each)});
        pg->gather(is_root ? all.list() : BufferList(), piece, {.root = root});
        for (int from = 0; is_root && from < pg->size(); ++from) {
          expect_all(all[from], static_cast<float>(from + 1), "gather");
        }
        std::ranges::fill(mine, -1.0F);
        pg->scatter(piece, is_root ? all.const_list() : ConstBufferList(), {.root = root});
        expect_all(is_in_place ? all[root] : std::span<float>(mine), static_cast<float>(pg->rank() + 1), "scatter");
      }
    }
  });
}

TEST_P(MixedLayouts, ReduceFromAnyAlignment) {
  run([](const ProcessGroupPtr& pg) {
    const auto sum = static_cast<float>(pg->size() * (pg->size() + 1)) / 2;
    for (int round = 0; round < 4; ++round) {
      const bool is_shared = (pg->rank() + round) % 3 == 0;
      // Not aligned even to its own elements on some ranks.
      const auto offset = index((pg->rank() + round) % 4);
      for (const std::size_t count : {1U, 3000U, 300'000U}) {
        const Memory memory(*pg, is_shared ? Place::group : Place::ordinary, count * sizeof(float), offset);
        std::vector<float> expected(count, static_cast<float>(pg->rank() + 1));
        std::memcpy(memory.data(), expected.data(), count * sizeof(float));
        pg->all_reduce(memory.buffer(DType::f32));
        std::ranges::fill(expected, sum);
        EXPECT_EQ(std::memcmp(memory.data(), expected.data(), count * sizeof(float)), 0) << "all_reduce of " << count;
        pg->broadcast(memory.buffer(DType::f32), {.root = round % pg->size()});
        pg->reduce(memory.buffer(DType::f32), {.root = round % pg->size(), .op = ReduceOp::max()});
        EXPECT_EQ(std::memcmp(memory.data(), expected.data(), count * sizeof(float)), 0) << "reduce of " << count;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, MixedLayouts, arrangements_of_several(), arrangement_name);

}  // namespace
}  // namespace cohort::test
