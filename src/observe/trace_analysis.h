// SPDX-License-Identifier: BSD-3-Clause
//
// Finds out from the dumps of all ranks what went wrong. Each group's collectives are matched by sequence number. The
// first one that some rank did not reach, or that ranks called with different arguments, is where the job failed. All
// ranks here are global ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "observe/trace_reader.h"

namespace cohort::observe {

enum class FindingKind : std::uint8_t {
  not_reached,   ///< some ranks did not reach a collective that others wait in
  mismatch,      ///< ranks called different operations under the same sequence number
  unmatched,     ///< a send or receive without its counterpart
  missing_dump,  ///< the rank that others wait for left no dump
  failed,        ///< all ranks reached it, and it failed on some
  in_progress,   ///< all ranks reached it, and some have not completed it
};
std::string_view to_string(FindingKind kind);

struct Finding {
  FindingKind kind = FindingKind::in_progress;
  std::string group{};         ///< the group's id
  std::int64_t sequence = -1;  ///< the operation's sequence number
  std::vector<int> ranks{};    ///< the ranks at fault, as far as known
  std::string sentence{};
  std::int64_t time_ns = 0;  ///< when the first rank reached the operation
};

/// The progress of one member of a group.
struct Whereabouts {
  int rank = -1;
  bool has_dump = false;
  std::int64_t last_completed = -1;
  std::string last_completed_op{};
  std::vector<std::string> in_flight{};
};

struct GroupReport {
  TraceGroup group{};
  std::vector<Whereabouts> members{};
};

struct TraceReport {
  std::string verdict{};            ///< one sentence
  bool is_fine = false;             ///< every operation that was started has completed, and no dump is missing
  std::vector<Finding> findings{};  ///< earliest first
  std::vector<GroupReport> groups{};
  std::vector<int> missing_ranks{};  ///< members of a group without a dump
};

/// `only_group` is the id or name of a group; empty: all groups. Throws a ValueError that lists the groups if it is
/// unknown, and a ValueError if there are two dumps of one rank.
TraceReport analyse(const std::vector<TraceDump>& dumps, const std::string& only_group = {});

/// "all_reduce [4] f32"
std::string describe(const TraceEntry& entry);

}  // namespace cohort::observe
