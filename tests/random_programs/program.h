// SPDX-License-Identifier: BSD-3-Clause
//
// A program: steps that every rank of a world performs in the same order. What differs between ranks (sizes, peers,
// where memory lies, in which order works are waited for) is computed from the step's own seed and the rank's number,
// so a program stays valid when steps are left out or the world gets smaller. That is what makes it shrinkable.
#pragma once

#include <cohort/dtype.h>
#include <cohort/reduce_op.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::random_programs {

enum class Kind : std::uint8_t {
  // Collectives on buffers, which may be in a batch.
  all_reduce,
  all_reduce_list,
  all_reduce_coalesced,
  reduce,
  broadcast,
  all_gather,
  all_gather_list,
  all_gather_coalesced,
  all_gather_lists_coalesced,
  gather,
  scatter,
  reduce_scatter,
  reduce_scatter_list,
  reduce_scatter_coalesced,
  all_to_all,
  all_to_all_uneven,
  all_to_all_list,
  barrier,
  // Messages. The first two may be in a batch.
  message,
  exchange,
  any_source,
  // What is neither.
  monitored_barrier,
  all_gather_bytes,
  broadcast_bytes,
  all_ok,
  split,
  drop,
  wait,
  batch,
};
inline constexpr int kinds = static_cast<int>(Kind::batch) + 1;

std::string_view to_string(Kind kind);
constexpr bool is_batchable_collective(Kind kind) {
  return kind <= Kind::barrier;
}
constexpr bool is_message(Kind kind) {
  return kind == Kind::message || kind == Kind::exchange || kind == Kind::any_source;
}

inline constexpr int world = 0;

struct Step {
  int number = 0;  ///< from 1, as it was generated; shrinking does not change it
  Kind kind = Kind::barrier;
  int group = world;  ///< or the number of the split that made the group
  DType dtype = DType::f32;
  ReduceOp::Kind reduction = ReduceOp::Kind::sum;
  std::size_t count = 0;  ///< elements of a piece
  bool is_uneven = false;
  bool is_async = false;
  bool is_in_place = false;
  std::uint64_t seed = 0;
  std::vector<Step> parts{};  ///< of a batch
};

struct Program {
  std::uint64_t seed = 0;
  int size = 1;
  int hosts = 0;           ///< how many hosts the ranks believe to be on; 0: the real one
  bool is_detail = false;  ///< COHORT_DEBUG=detail
  bool ranks_are_threads = false;
  std::vector<Step> steps{};
};

/// A number that depends on all of its arguments.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b, std::uint64_t c = 0, std::uint64_t d = 0);

// --- what a step means for a group of n ranks -----------------------------------------------------------------------

int root_of(const Step& step, int n);
/// For a message: who sends and who receives. They may be the same rank.
int sender_of(const Step& step, int n);
int receiver_of(const Step& step, int n);
/// For an exchange: rank r sends to rank r + shift.
int shift_of(const Step& step, int n);
int tag_of(const Step& step);
/// Which ranks of the parent a split takes; sorted, never empty.
std::vector<int> split_of(const Step& step, int n);
/// For all_ok: the ranks whose function throws.
bool throws_in(const Step& step, int rank);

/// How many elements the buffers have that a rank gives and gets. What is reduced or broadcast in place is an output.
struct Shape {
  std::vector<std::size_t> inputs;
  std::vector<std::size_t> outputs;
};
Shape shape_of(const Step& step, int n, int rank);
/// The elements that rank `from` sends to rank `to` in an uneven all_to_all.
std::size_t cell_of(const Step& step, int from, int to);

/// How a rank's pieces lie in memory.
enum class Layout : std::uint8_t { adjacent, apart, backwards };
Layout layout_of(const Step& step, int rank);
bool wants_group_memory(const Step& step, int rank);

/// The members of each group, as ranks of the world.
std::map<int, std::vector<int>> members_of(const Program& program);

/// Keeps the steps with these numbers, and of those the ones whose group is made by a step that is kept.
Program with_steps(const Program& program, const std::vector<int>& numbers);
/// No piece has more elements than this.
Program with_elements(const Program& program, std::size_t most);

/// As text that a person can follow, one line per step.
std::string describe(const Program& program);

}  // namespace cohort::random_programs
