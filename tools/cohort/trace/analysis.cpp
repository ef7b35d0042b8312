// SPDX-License-Identifier: BSD-3-Clause
#include "trace/analysis.h"

#include <cohort/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace cohort::trace {

namespace {

using Entries = std::vector<const TraceEntry*>;

/// One rank in one group.
struct Member {
  int rank = -1;
  bool has_dump = false;
  std::map<std::int64_t, Entries> collectives{};  ///< by sequence number; several for a batch
  Entries p2p{};
  const TraceStatus* status = nullptr;
};

struct Group {
  TraceGroup info{};
  std::string label{};  ///< the group's name in messages
  std::vector<Member> members{};
};

std::string names_of(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string shape_text(const TraceBuffers& buffers) {
  if (buffers.sizes.empty()) return {};
  const auto& first = buffers.sizes.front();
  const bool alike =
      std::all_of(buffers.sizes.begin(), buffers.sizes.end(), [&first](const auto& sizes) { return sizes == first; });
  auto text = fmt::format(" [{}]", fmt::join(first, ", "));
  if (buffers.sizes.size() > 1) {
    text = alike ? fmt::format(" {} x [{}]", buffers.sizes.size(), fmt::join(first, ", "))
                 : fmt::format("{} and more, {} elements,", text, buffers.elements());
  }
  return buffers.dtypes.empty() ? text : fmt::format("{} {}", text, buffers.dtypes.front());
}

bool is_one_of(std::string_view op, std::initializer_list<std::string_view> ops) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

/// The buffers of an operation on which ranks must agree (inputs or outputs); null if they need not agree.
const TraceBuffers* side_that_agrees(const TraceEntry& entry) {
  const auto given = [](const TraceBuffers& buffers) { return buffers.sizes.empty() ? nullptr : &buffers; };
  if (is_one_of(entry.op, {"all_reduce", "all_reduce_coalesced", "reduce", "broadcast"})) {
    const auto* const input = given(entry.input);
    return input != nullptr ? input : given(entry.output);
  }
  if (is_one_of(entry.op, {"gather", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"})) {
    return given(entry.input);
  }
  if (is_one_of(entry.op, {"scatter", "all_gather", "all_gather_single", "all_gather_coalesced", "_all_gather_base"})) {
    return given(entry.output);
  }
  return nullptr;
}

bool conflict(const TraceEntry& a, const TraceEntry& b) {
  if (a.op != b.op) return true;
  const auto* const of_a = side_that_agrees(a);
  const auto* const of_b = side_that_agrees(b);
  if (of_a == nullptr || of_b == nullptr) return false;
  if (of_a->elements() != of_b->elements()) return true;
  return !of_a->dtypes.empty() && !of_b->dtypes.empty() && of_a->dtypes.front() != of_b->dtypes.front();
}

bool conflict(const Entries& a, const Entries& b) {
  return !std::equal(a.begin(), a.end(), b.begin(), b.end(),
                     [](const TraceEntry* x, const TraceEntry* y) { return !conflict(*x, *y); });
}

std::string describe_all(const Entries& entries) {
  std::vector<std::string> texts;
  for (const auto* const entry : entries) texts.push_back(describe(*entry));
  return fmt::format("{}", fmt::join(texts, " + "));
}

bool is_in_flight(const TraceEntry& entry) {
  return entry.state == TraceState::scheduled || entry.state == TraceState::started;
}

enum class Stage : std::uint8_t { no_dump, not_reached, in_flight, failed, completed, forgotten };

Stage stage_at(const Member& member, std::int64_t sequence) {
  if (!member.has_dump) return Stage::no_dump;
  const auto it = member.collectives.find(sequence);
  if (it != member.collectives.end()) {
    const auto any = [&it](auto is) {
      return std::any_of(it->second.begin(), it->second.end(), [&](const TraceEntry* entry) { return is(*entry); });
    };
    if (any([](const TraceEntry& entry) { return entry.state == TraceState::failed; })) return Stage::failed;
    return any(is_in_flight) ? Stage::in_flight : Stage::completed;
  }
  if (member.status != nullptr) {
    if (member.status->completed >= sequence) return Stage::completed;
    if (member.status->enqueued >= sequence) return Stage::forgotten;
    return Stage::not_reached;
  }
  const bool has_newer = !member.collectives.empty() && member.collectives.rbegin()->first > sequence;
  return has_newer ? Stage::forgotten : Stage::not_reached;
}

/// The last collective that completed on this rank.
std::pair<std::int64_t, std::string> last_completed(const Member& member) {
  std::pair<std::int64_t, std::string> last{-1, {}};
  for (const auto& [sequence, entries] : member.collectives) {
    if (stage_at(member, sequence) == Stage::completed) last = {sequence, entries.front()->op};
  }
  const auto* const status = member.status;
  if (status != nullptr && status->completed > last.first) last = {status->completed, status->completed_op};
  return last;
}

class Analysis {
 public:
  explicit Analysis(const std::vector<TraceDump>& dumps) : dumps_(dumps) {
    refuse_doubles();
    collect_groups();
    name_groups();
  }

  TraceReport report(const std::string& only_group) const {
    const auto chosen = choose(only_group);
    TraceReport report;
    std::set<int> missing;
    for (const auto* const group : chosen) {
      add_collective_finding(*group, report.findings);
      add_p2p_findings(*group, report.findings);
      report.groups.push_back(describe_progress(*group));
      for (const auto& member : group->members) {
        if (!member.has_dump) missing.insert(member.rank);
      }
    }
    report.missing_ranks.assign(missing.begin(), missing.end());
    std::stable_sort(report.findings.begin(), report.findings.end(), [](const Finding& a, const Finding& b) {
      // Operations that are merely in progress come after failures.
      return std::tuple(a.kind == FindingKind::in_progress, a.time_ns) <
             std::tuple(b.kind == FindingKind::in_progress, b.time_ns);
    });
    report.is_fine = report.findings.empty() && missing.empty();
    if (!report.findings.empty()) {
      report.summary = report.findings.front().sentence;
    } else if (!missing.empty()) {
      report.summary = fmt::format("no dump of {}; the other ranks finished everything they started",
                                   names_of(report.missing_ranks));
    } else {
      report.summary = "all ranks finished everything they started";
    }
    return report;
  }

 private:
  void refuse_doubles() const {
    std::map<int, std::string> files;
    for (const auto& dump : dumps_) {
      const auto [it, is_new] = files.emplace(dump.rank, dump.file);
      if (!is_new) {
        throw ValueError(
            fmt::format("{} and {} are both dumps of rank {}: give one of them", it->second, dump.file, dump.rank));
      }
    }
  }

  void collect_groups() {
    std::map<std::string, Group> groups;
    for (const auto& dump : dumps_) {
      for (const auto& [id, info] : dump.groups) {
        auto& group = groups[id];
        if (group.info.ranks.size() <= info.ranks.size()) group.info = info;
      }
      for (const auto& entry : dump.entries) {
        auto& group = groups[entry.group];
        if (group.info.id.empty()) group.info = {entry.group, entry.group, {}, {}};
      }
    }
    for (auto& [id, group] : groups) {
      std::map<int, Member> members;
      const auto member_of = [&members](int rank) -> Member& {
        auto& member = members[rank];
        member.rank = rank;
        return member;
      };
      for (const auto rank : group.info.ranks) member_of(rank);
      for (const auto& dump : dumps_) add_dump(dump, id, members, member_of);
      for (auto& [rank, member] : members) group.members.push_back(std::move(member));
      groups_.push_back(std::move(group));
    }
  }

  template <class MemberOf>
  static void add_dump(const TraceDump& dump, const std::string& id, std::map<int, Member>& members,
                       const MemberOf& member_of) {
    if (const auto it = members.find(dump.rank); it != members.end()) it->second.has_dump = true;
    for (const auto& status : dump.statuses) {
      if (status.group != id) continue;
      auto& member = member_of(status.rank);
      member.has_dump = true;
      member.status = &status;
    }
    for (const auto& entry : dump.entries) {
      if (entry.group != id) continue;
      auto& member = member_of(entry.rank);
      member.has_dump = true;
      if (entry.is_p2p)
        member.p2p.push_back(&entry);
      else
        member.collectives[entry.collective_sequence].push_back(&entry);
    }
  }

  void name_groups() {
    std::map<std::string, int> used;
    for (const auto& group : groups_) ++used[group.info.name];
    for (auto& group : groups_) {
      const auto& info = group.info;
      group.label = used[info.name] == 1 ? info.name : fmt::format("{} ({})", info.name, info.id);
    }
  }

  std::vector<const Group*> choose(const std::string& only) const {
    std::vector<const Group*> chosen;
    std::vector<std::string> known;
    for (const auto& group : groups_) {
      if (only.empty() || group.info.id == only || group.info.name == only) chosen.push_back(&group);
      known.push_back(group.label);
    }
    if (chosen.empty() && !only.empty()) {
      throw ValueError(fmt::format("no group \"{}\" in the dumps; there {}: {}", only, known.size() == 1 ? "is" : "are",
                                   known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
    }
    return chosen;
  }

  const std::string& label_of(const std::string& id) const {
    const auto it = std::find_if(groups_.begin(), groups_.end(), [&id](const Group& g) { return g.info.id == id; });
    return it == groups_.end() ? id : it->label;
  }

  std::string place_of(const TraceEntry& entry) const {
    auto text = fmt::format("{} #{}", entry.op, entry.sequence());
    if (entry.is_p2p) {
      const auto peer = entry.peer < 0 ? std::string("any rank") : fmt::format("rank {}", entry.peer);
      text += fmt::format(" {} {}", entry.op == "send" ? "to" : "from", peer);
    }
    return fmt::format("{} of group {}", text, label_of(entry.group));
  }

  /// What a missing rank is doing instead: "it is in ...", or the last operation that it completed in the group.
  std::string excuse(const Member& member) const {
    for (const auto& group : groups_) {
      for (const auto& other : group.members) {
        if (other.rank != member.rank) continue;
        for (const auto& [sequence, entries] : other.collectives) {
          for (const auto* const entry : entries) {
            if (is_in_flight(*entry)) return "it is in " + place_of(*entry);
          }
        }
        for (const auto* const entry : other.p2p) {
          if (is_in_flight(*entry)) return "it is in " + place_of(*entry);
        }
      }
    }
    const auto [sequence, op] = last_completed(member);
    if (sequence < 0) return "it has not finished any";
    return fmt::format("it last finished #{}{}{}", sequence, op.empty() ? "" : " ", op);
  }

  void add_collective_finding(const Group& group, std::vector<Finding>& findings) const {
    std::set<std::int64_t> sequences;
    for (const auto& member : group.members) {
      for (const auto& [sequence, entries] : member.collectives) sequences.insert(sequence);
    }
    for (const auto sequence : sequences) {
      auto finding = mismatch_at(group, sequence);
      if (!finding) finding = stop_at(group, sequence);
      if (finding) {
        findings.push_back(std::move(*finding));
        return;
      }
    }
  }

  static std::int64_t first_time(const Group& group, std::int64_t sequence) {
    auto time = std::numeric_limits<std::int64_t>::max();
    for (const auto& member : group.members) {
      const auto it = member.collectives.find(sequence);
      if (it == member.collectives.end()) continue;
      for (const auto* const entry : it->second) time = std::min(time, entry->created_ns);
    }
    return time;
  }

  static std::optional<Finding> mismatch_at(const Group& group, std::int64_t sequence) {
    struct Camp {
      std::vector<int> ranks;
      const Entries* called;
    };
    std::vector<Camp> camps;
    for (const auto& member : group.members) {
      const auto it = member.collectives.find(sequence);
      if (it == member.collectives.end()) continue;
      const auto camp =
          std::find_if(camps.begin(), camps.end(), [&it](const Camp& c) { return !conflict(*c.called, it->second); });
      if (camp != camps.end())
        camp->ranks.push_back(member.rank);
      else
        camps.push_back({{member.rank}, &it->second});
    }
    if (camps.size() < 2) return std::nullopt;
    // The minority is more likely to be at fault.
    std::stable_sort(camps.begin(), camps.end(),
                     [](const Camp& a, const Camp& b) { return a.ranks.size() < b.ranks.size(); });
    std::vector<std::string> parts;
    parts.reserve(camps.size());
    for (const auto& camp : camps) {
      parts.push_back(
          fmt::format("{} {}{}", names_of(camp.ranks), parts.empty() ? "called " : "", describe_all(*camp.called)));
    }
    Finding finding{.kind = FindingKind::mismatch, .group = group.info.id, .sequence = sequence};
    if (camps[0].ranks.size() < camps[1].ranks.size()) finding.ranks = camps[0].ranks;
    finding.sentence =
        fmt::format("ranks disagree at #{} of group {}: {}", sequence, group.label, fmt::join(parts, ", "));
    finding.time_ns = first_time(group, sequence);
    return finding;
  }

  std::optional<Finding> stop_at(const Group& group, std::int64_t sequence) const {
    std::map<Stage, std::vector<int>> at;
    const Entries* called = nullptr;
    for (const auto& member : group.members) {
      const auto stage = stage_at(member, sequence);
      at[stage].push_back(member.rank);
      if (stage == Stage::in_flight || stage == Stage::failed) called = &member.collectives.at(sequence);
    }
    if (called == nullptr) return std::nullopt;
    const auto op = fmt::format("{} #{} of group {}", called->front()->op, sequence, group.label);
    const auto& waiting = at[Stage::in_flight];
    const auto& failed = at[Stage::failed];
    std::vector<std::string> others;
    if (!waiting.empty())
      others.push_back(fmt::format("{} {} in it", names_of(waiting), waiting.size() == 1 ? "waits" : "wait"));
    if (!failed.empty()) others.push_back(fmt::format("{} gave up on it", names_of(failed)));
    const auto what_others_do = fmt::format("{}", fmt::join(others, ", "));

    Finding finding{.group = group.info.id, .sequence = sequence, .time_ns = first_time(group, sequence)};
    if (const auto& absent = at[Stage::not_reached]; !absent.empty()) {
      finding.kind = FindingKind::not_reached;
      finding.ranks = absent;
      const auto first = std::find_if(group.members.begin(), group.members.end(),
                                      [&absent](const Member& member) { return member.rank == absent.front(); });
      auto why = excuse(*first);
      if (absent.size() > 1) why = fmt::format("rank {}: {}", first->rank, why);
      finding.sentence = fmt::format("{} never started {} ({}); {}", names_of(absent), op, why, what_others_do);
    } else if (const auto& dumpless = at[Stage::no_dump]; !dumpless.empty()) {
      finding.kind = FindingKind::missing_dump;
      finding.ranks = dumpless;
      finding.sentence =
          fmt::format("no dump of {}, which may never have started {}; {}", names_of(dumpless), op, what_others_do);
    } else {
      finding.kind = failed.empty() ? FindingKind::in_progress : FindingKind::failed;
      finding.ranks = waiting;
      const auto& done = at[Stage::completed];
      finding.sentence = fmt::format("all ranks reached {}; {}{}", op, what_others_do,
                                     done.empty() ? "" : fmt::format(", {} finished it", names_of(done)));
    }
    return finding;
  }

  void add_p2p_findings(const Group& group, std::vector<Finding>& findings) const {
    for (const auto& member : group.members) {
      for (const auto* const entry : member.p2p) {
        if (entry->state == TraceState::completed) continue;
        findings.push_back(p2p_finding(group, *entry));
        break;  // later operations on this rank may only be waiting for this one
      }
    }
  }

  Finding p2p_finding(const Group& group, const TraceEntry& entry) const {
    Finding finding{.kind = FindingKind::unmatched,
                    .group = group.info.id,
                    .sequence = entry.p2p_sequence,
                    .time_ns = entry.created_ns};
    const bool sends = entry.op == "send";
    const auto* const counterpart = sends ? "recv" : "send";
    const auto* const link = sends ? "from it" : "to it";
    const auto what =
        fmt::format("rank {} {} {} #{}{} {} {} of group {}", entry.rank,
                    entry.state == TraceState::failed ? "gave up on" : "waits in", entry.op, entry.p2p_sequence,
                    shape_text(sends ? entry.input : entry.output), sends ? "to" : "from",
                    entry.peer < 0 ? "any rank" : fmt::format("rank {}", entry.peer), group.label);
    const auto meets = [&entry](const TraceEntry& other) { return other.peer == entry.rank || other.peer < 0; };
    const TraceEntry* partner = nullptr;
    std::vector<int> dumpless;
    for (const auto& member : group.members) {
      if (member.rank == entry.rank || (entry.peer >= 0 && member.rank != entry.peer)) continue;
      if (!member.has_dump) dumpless.push_back(member.rank);
      for (const auto* const other : member.p2p) {
        if (partner == nullptr && other->state != TraceState::completed && (other->op == "send") != sends &&
            meets(*other)) {
          partner = other;
        }
      }
    }
    if (partner != nullptr) {
      const auto& mine = sends ? entry.input : entry.output;
      const auto& theirs = sends ? partner->output : partner->input;
      const bool differ = mine.elements() != theirs.elements() || mine.dtypes != theirs.dtypes;
      finding.kind = differ ? FindingKind::mismatch : FindingKind::in_progress;
      finding.ranks = {partner->rank};
      finding.sentence = fmt::format("{}, rank {} is in {} #{}{} {}", what, partner->rank, partner->op,
                                     partner->p2p_sequence, shape_text(theirs), link);
      return finding;
    }
    if (!dumpless.empty()) {
      finding.kind = FindingKind::missing_dump;
      finding.ranks = dumpless;
      finding.sentence = fmt::format("{}; no dump of {}", what, names_of(dumpless));
      return finding;
    }
    if (entry.peer < 0) {
      finding.sentence = fmt::format("{}, and no rank has a {} {} under way", what, counterpart, link);
      return finding;
    }
    finding.ranks = {entry.peer};
    const auto peer = std::find_if(group.members.begin(), group.members.end(),
                                   [&entry](const Member& member) { return member.rank == entry.peer; });
    const auto why = peer == group.members.end() ? std::string("it is not in the group") : excuse(*peer);
    finding.sentence =
        fmt::format("{}, and rank {} has no {} {} under way ({})", what, entry.peer, counterpart, link, why);
    return finding;
  }

  GroupReport describe_progress(const Group& group) const {
    GroupReport report{.group = group.info};
    report.group.name = group.label;
    for (const auto& member : group.members) {
      MemberState where{.rank = member.rank, .has_dump = member.has_dump};
      std::tie(where.last_completed, where.last_completed_op) = last_completed(member);
      const auto add = [&where](const TraceEntry& entry) {
        if (!is_in_flight(entry)) return;
        where.in_flight.push_back(fmt::format("#{} {}", entry.sequence(), describe(entry)));
      };
      for (const auto& [sequence, entries] : member.collectives) {
        for (const auto* const entry : entries) add(*entry);
      }
      for (const auto* const entry : member.p2p) add(*entry);
      report.members.push_back(std::move(where));
    }
    return report;
  }

  const std::vector<TraceDump>& dumps_;
  std::vector<Group> groups_;
};

}  // namespace

std::string_view to_string(FindingKind kind) {
  constexpr std::array<std::string_view, 6> names = {"not_reached",  "mismatch", "unmatched",
                                                     "missing_dump", "failed",   "in_progress"};
  return names.at(static_cast<std::size_t>(kind));
}

std::string describe(const TraceEntry& entry) {
  const auto* side = side_that_agrees(entry);
  if (side == nullptr) side = entry.input.sizes.empty() ? &entry.output : &entry.input;
  auto text = entry.op + shape_text(*side);
  if (entry.is_p2p && entry.peer >= 0)
    text += fmt::format(" {} rank {}", entry.op == "send" ? "to" : "from", entry.peer);
  return text;
}

TraceReport analyse(const std::vector<TraceDump>& dumps, const std::string& only_group) {
  return Analysis(dumps).report(only_group);
}

}  // namespace cohort::trace
