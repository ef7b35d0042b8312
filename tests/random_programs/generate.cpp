// SPDX-License-Identifier: BSD-3-Clause
#include "random_programs/generate.h"

#include <algorithm>
#include <array>
#include <random>

namespace cohort::random_programs {

namespace {

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  Program program(std::uint64_t seed, const std::string& backend) {
    Program program{.seed = seed};
    program.size = pick(std::to_array({1, 2, 2, 3, 3, 4, 5, 8}));
    const int hosts = 1 + below(3);
    const bool is_detail = below(6) == 0;
    const bool are_threads = below(4) == 0;
    if (backend == "hybrid") program.hosts = std::min(hosts, program.size);
    program.is_detail = is_detail;
    program.ranks_are_threads = backend == "thread" || (backend == "gloo" && are_threads);
    const int steps = 10 + below(40);
    for (int i = 0; i < steps; ++i) program.steps.push_back(step(i + 1));
    return program;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  template <class List>
  typename List::value_type pick(const List& list) {
    return list[static_cast<std::size_t>(below(static_cast<int>(list.size())))];
  }

  /// Sizes on both sides of where an algorithm changes (docs/algorithms.md, docs/backends.md), and small ones.
  std::size_t count_of(DType dtype) {
    const auto size = size_of(dtype);
    switch (below(12)) {
      case 0:
        return 0;
      case 1:
      case 2:
        return 1;
      case 3:
      case 4:
      case 5:
      case 6:
        return static_cast<std::size_t>(2 + below(40));
      case 7:
      case 8:
        return static_cast<std::size_t>(40 + below(1500));
      case 9:
      case 10: {
        const auto bytes = pick(std::to_array<std::size_t>({32, 1024, 4096, 8192, 16384, 32768, 65536}));
        return std::max<std::size_t>(bytes / size, 2) - 1 + static_cast<std::size_t>(below(3));
      }
      default:
        return below(4) == 0 ? (static_cast<std::size_t>(below(1'200'000)) + 100'000) / size
                             : static_cast<std::size_t>(below(100'000)) / size;
    }
  }

  Step data_step(int number, Kind kind, int group) {
    constexpr auto dtypes =
        std::to_array({DType::f16, DType::bf16, DType::f32, DType::f64, DType::i8, DType::u8, DType::i16, DType::i32,
                       DType::i64, DType::boolean, DType::complex64, DType::complex128});
    using Op = ReduceOp::Kind;
    constexpr auto ops =
        std::to_array({Op::sum, Op::avg, Op::product, Op::min, Op::max, Op::band, Op::bor, Op::bxor, Op::premul_sum});
    Step step{.number = number, .kind = kind, .group = group, .dtype = pick(dtypes)};
    const bool is_list = kind == Kind::all_reduce_list;
    do {
      step.reduction = pick(ops);
    } while (!is_reducible(step.dtype, step.reduction == Op::premul_sum ? ReduceOp::premul_sum(1) : step.reduction) ||
             (is_list && (step.reduction == Op::avg || step.reduction == Op::premul_sum)));
    step.count = count_of(step.dtype);
    step.is_uneven = below(2) == 0;
    step.is_async = below(3) == 0;
    step.is_in_place = (kind == Kind::all_gather || kind == Kind::all_gather_list) && below(3) == 0;
    step.seed = random_();
    return step;
  }

  Step batch(int number, int group) {
    auto whole = data_step(number, Kind::batch, group);
    const bool are_messages = below(3) == 0;
    const int parts = 1 + below(4);
    for (int i = 0; i < parts; ++i) {
      const auto kind = are_messages ? pick(std::to_array({Kind::message, Kind::exchange}))
                                     : static_cast<Kind>(below(static_cast<int>(Kind::barrier) + 1));
      auto part = data_step(number, kind, group);
      part.is_async = false;
      part.count = std::min<std::size_t>(part.count, 5000);
      whole.parts.push_back(part);
    }
    return whole;
  }

  Step step(int number) {
    const int group = pick(groups_);
    // The collectives on buffers take turns with everything else.
    auto kind = static_cast<Kind>(below(2) == 0 ? below(static_cast<int>(Kind::barrier)) : below(kinds));
    if (kind == Kind::split && groups_.size() > 6) kind = Kind::drop;
    if (kind == Kind::drop && group == world) kind = Kind::wait;
    if (kind == Kind::batch) return batch(number, group);
    if (kind == Kind::split) groups_.push_back(number);
    if (kind == Kind::drop) groups_.erase(std::find(groups_.begin(), groups_.end(), group));
    return data_step(number, kind, group);
  }

  std::mt19937_64 random_;
  std::vector<int> groups_{world};  // that have not been dropped
};

}  // namespace

Program generate(std::uint64_t seed, const std::string& backend) {
  return Generator(mixed(seed, 0x5eed)).program(seed, backend);
}

}  // namespace cohort::random_programs
