// SPDX-License-Identifier: BSD-3-Clause
//
// Finds what went wrong from the dumps of all ranks. The collectives of each group are compared by sequence number; the
// first one that some rank did not reach, or that ranks did not call alike, is where the job went wrong. All ranks are
// global ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/reader.h"

namespace cohort::trace {

enum class FindingKind : std::uint8_t {
  not_reached,   ///< some ranks never reached a collective that others wait in
  mismatch,      ///< ranks called different things under one sequence number
  unmatched,     ///< point-to-point without its other end
  missing_dump,  ///< the rank that others wait for left no dump
  failed,        ///< all ranks reached the operation, and it failed on some
  in_progress,   ///< all ranks reached the operation; some have not finished it
};
std::string_view to_string(FindingKind kind);

struct Finding {
  FindingKind kind = FindingKind::in_progress;
  std::string group{};         ///< id
  std::int64_t sequence = -1;  ///< of the operation
  std::vector<int> ranks{};    ///< the ranks at fault, as far as they are known
  std::string sentence{};
  std::int64_t time_ns = 0;  ///< when the first rank reached it
};

/// How far a member of a group has got.
struct MemberState {
  int rank = -1;
  bool has_dump = false;
  std::int64_t last_completed = -1;
  std::string last_completed_op{};
  std::vector<std::string> in_flight{};
};

struct GroupReport {
  TraceGroup group{};
  std::vector<MemberState> members{};
};

struct TraceReport {
  std::string summary{};            ///< one sentence: what went wrong
  bool is_fine = false;             ///< every operation that was started has finished, and no dump is missing
  std::vector<Finding> findings{};  ///< the earliest first
  std::vector<GroupReport> groups{};
  std::vector<int> missing_ranks{};  ///< members of a group without a dump
};

/// `only_group` is the id or name of a group; empty: all groups. Throws a ValueError that lists the groups if it is
/// unknown, and a ValueError if there are two dumps of one rank.
TraceReport analyse(const std::vector<TraceDump>& dumps, const std::string& only_group = {});

/// "all_reduce [4] f32"
std::string describe(const TraceEntry& entry);

}  // namespace cohort::trace
