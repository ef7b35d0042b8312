// SPDX-License-Identifier: BSD-3-Clause
//
// Functional collectives that undo or repeat each other. Each finding changes who uses what, so the program is looked at
// anew after it.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "torch/capture/operator_traits.h"
#include "torch/capture/passes/effects.h"
#include "torch/capture/passes/passes.h"
#include "torch/capture/passes/rename.h"

namespace cohort::recording {

namespace {

bool is_called(const Instruction& instruction, std::string_view name) {
  return instruction.op && instruction.op->operator_name().name == name;
}

bool is_wait_tensor(const Instruction& instruction) {
  return instruction.op && traits_of(*instruction.op).is_wait;
}

bool is_dense_row_major(const GraphValue& value) {
  std::int64_t stride = 1;
  for (auto i = value.sizes.size(); i-- > 0;) {
    if (value.sizes[i] != 1 && value.strides[i] != stride) return false;
    stride *= value.sizes[i];
  }
  return true;
}

bool look_alike(const GraphValue& a, const GraphValue& b) {
  return a.sizes == b.sizes && a.dtype == b.dtype && a.device == b.device && is_dense_row_major(a) &&
         is_dense_row_major(b);
}

/// One look at the program.
class PairSearch {
 public:
  explicit PairSearch(Program& program)
      : program_(program), resources_(program), effects_(effects_of(program, resources_)), users_(resources_.size()) {
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const auto& each = program.instructions[i];
      if (each.distributed != nullptr) continue;
      for (const auto id : each.reads) use(id, i);
      for (const auto id : each.writes) use(id, i);
      for (const auto& result : each.results) use(result.value, i);
    }
    is_left_.resize(resources_.size());
    for (const auto& each : program.outputs) leave(each);
    for (const auto& each : program.final_gradients) leave(each.tensor);
  }

  /// Mends the first finding, and says whether there was one.
  bool run() {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      if (!is_called(program_.instructions[i], "cohort::all_gather_into_tensor")) continue;
      if (becomes_all_reduce(i) || becomes_own_part(i) || repeats(i)) return true;
    }
    return false;
  }

 private:
  using Places = std::vector<std::size_t>;

  void use(ValueId id, std::size_t where) {
    auto& users = users_[resources_.storage_of(id)];
    if (users.empty() || users.back() != where) users.push_back(where);
  }
  void leave(const LeftTensor& tensor) {
    if (tensor.value) is_left_[resources_.storage_of(*tensor.value)] = true;
  }

  Instruction& at(std::size_t place) { return program_.instructions[place]; }
  const GraphValue& shown(ValueId id) const { return program_.values[id].shown; }
  const Places& users_of(ValueId id) const { return users_[resources_.storage_of(id)]; }
  bool is_left(ValueId id) const { return is_left_[resources_.storage_of(id)]; }

  bool is_written(ValueId id, std::size_t from, std::size_t to) const {
    const auto storage = resources_.storage_of(id);
    return std::any_of(users_[storage].begin(), users_[storage].end(), [&](std::size_t place) {
      const auto& writes = effects_[place].writes;
      return from <= place && place <= to && !is_wait_tensor(program_.instructions[place]) &&
             std::binary_search(writes.begin(), writes.end(), storage);
    });
  }

  void erase(Places places) {
    std::sort(places.begin(), places.end());
    for (auto i = places.size(); i-- > 0;) {
      program_.instructions.erase(program_.instructions.begin() + static_cast<std::ptrdiff_t>(places[i]));
    }
  }

  /// reduce_scatter, then all_gather of nothing but its result.
  bool becomes_all_reduce(std::size_t gather) {
    const auto shard = at(gather).tensors.front().value;
    const auto& users = users_of(shard);
    const auto scatter = users.front();
    if (!is_called(at(scatter), "cohort::reduce_scatter_tensor") || at(scatter).group != at(gather).group) return false;
    if (at(scatter).results.front().value != shard || is_left(shard)) return false;
    Places gone{gather};
    for (const auto each : users) {
      if (each == scatter || each == gather) continue;
      if (!is_wait_tensor(at(each))) return false;
      gone.push_back(each);
    }
    const auto whole = at(gather).results.front().value;
    const auto input = at(scatter).tensors.front().value;
    if (!look_alike(shown(input), shown(whole))) return false;
    auto& sum = at(scatter);
    static const auto all_reduce = c10::Dispatcher::singleton().findSchemaOrThrow("cohort::all_reduce", "");
    sum.op = all_reduce;
    sum.arguments = {c10::IValue(), sum.arguments[1], sum.arguments[3]};
    sum.results.front().value = whole;
    sum.is_blocking = at(gather).is_blocking;
    erase(std::move(gone));
    return true;
  }

  /// all_gather, and then only the part that this rank has given.
  bool becomes_own_part(std::size_t gather) {
    const auto& instruction = at(gather);
    const auto part = instruction.tensors.front().value;
    const auto whole = instruction.results.front().value;
    if (is_left(whole) || shown(part).sizes.empty() || is_written(whole, gather + 1, program_.instructions.size())) {
      return false;
    }
    Places gone{gather};
    Renaming renaming(program_);
    bool is_used = false;
    for (const auto each : users_of(whole)) {
      if (each == gather) continue;
      const auto& user = at(each);
      const auto uses_whole = std::find(user.reads.begin(), user.reads.end(), whole) != user.reads.end();
      if (is_wait_tensor(user)) {
        gone.push_back(each);
      } else if (uses_whole) {
        if (!is_own_part(user, part, instruction.group->rank())) return false;
        renaming.rename(user.results.front().value, part);
        gone.push_back(each);
        is_used = true;
      }
    }
    if (!is_used || is_written(part, gather, users_of(whole).back())) return false;
    for (auto& each : program_.instructions) renaming.apply(each);
    renaming.finish(program_);
    erase(std::move(gone));
    return true;
  }

  /// whole[rank * n : (rank + 1) * n], which looks like the part.
  bool is_own_part(const Instruction& slice, ValueId part, int rank) const {
    if (!is_called(slice, "aten::slice") || !look_alike(shown(slice.results.front().value), shown(part))) return false;
    const auto& arguments = slice.arguments;
    const auto rows = shown(part).sizes.front();
    return arguments[1].toInt() == 0 && arguments[2].isInt() && arguments[2].toInt() == rank * rows &&
           arguments[4].toInt() == 1;
  }

  /// Whether the collective's result is there at this place.
  bool is_awaited(std::size_t collective, std::size_t where) {
    const auto& users = users_of(at(collective).results.front().value);
    return at(collective).is_blocking || std::any_of(users.begin(), users.end(), [&](std::size_t each) {
             return each < where && is_wait_tensor(at(each));
           });
  }

  /// all_gather of what another one has gathered, whose result still exists.
  bool repeats(std::size_t gather) {
    const auto part = at(gather).tensors.front().value;
    const auto whole = at(gather).results.front().value;
    const auto end = program_.instructions.size();
    if (is_written(whole, gather + 1, end)) return false;
    for (const auto first : users_of(part)) {
      if (first >= gather || !is_called(at(first), "cohort::all_gather_into_tensor")) continue;
      if (at(first).group != at(gather).group || at(first).tensors.front().value != part) continue;
      const auto known = at(first).results.front().value;
      const bool still_exists = is_left(known) || users_of(known).back() > gather;
      if (!still_exists || is_written(part, first, gather) || is_written(known, first + 1, end)) continue;
      if (is_left(known) && is_left(whole)) continue;
      if (at(gather).is_blocking && !is_awaited(first, gather)) continue;
      Renaming renaming(program_);
      renaming.rename(whole, known);
      for (auto& each : program_.instructions) renaming.apply(each);
      renaming.finish(program_);
      erase({gather});
      return true;
    }
    return false;
  }

  Program& program_;
  Resources resources_;
  std::vector<Effects> effects_;
  std::vector<Places> users_;  // of storages, their makers included
  std::vector<bool> is_left_;  // storages
};

}  // namespace

PassReport cancel_pairs(Program& program) {
  std::size_t count = 0;
  while (PairSearch(program).run()) ++count;
  return {.name = "cancel_pairs",
          .count = count,
          .text = fmt::format("{} collectives that undid or repeated others are gone", count)};
}

}  // namespace cohort::recording
