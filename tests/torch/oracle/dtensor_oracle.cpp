// SPDX-License-Identifier: BSD-3-Clause
//
// Compares our distributed tensors with PyTorch's: the programs of dtensor_programs.h with what dtensor_reference.py
// has written down of the same ones. Placements, sizes and offsets of the parts and the number of collectives of each
// kind must be equal, and so must values: exactly where data only moves, and but for rounding where it is added up.
// What differs on purpose is in the table below, and must differ exactly so.
//
//   torch_dtensor_oracle FOLDER          tools/dev/dtensor_oracle.sh does both steps
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "torch/oracle/dtensor_programs.h"
#include "torch/torch_ranks.h"

namespace cohort::test {
namespace {

struct Difference {
  const char* program;  ///< with * and ? for several
  const char* what;     ///< "collectives", or the title of a value whose placements differ
  const char* ours;
  const char* theirs;
  const char* why;
  bool of_every_version = true;
};

constexpr const char* gathers = "PyTorch gathers instead of an all-to-all on the host";
constexpr const char* own_placements = "a leaf's gradient is brought to the leaf's placements";
constexpr const char* by_sum = "the parts' sums are divided by the whole length, which is right for uneven parts too";
constexpr const char* cheapest = "a reduce-scatter moves half of what an all-reduce does";

const std::vector<Difference> intended{
    {"redistribute * S(0) -> S(1)", "collectives", "all_to_all_single=1", "all_gather_into_tensor=1", gathers},
    {"redistribute * S(1) -> S(0)", "collectives", "all_to_all_single=1", "all_gather_into_tensor=1", gathers},
    {"redistribute * S(0),S(1) -> S(1),S(0)", "collectives", "all_gather_into_tensor=1 all_to_all_single=1",
     "all_gather_into_tensor=2", gathers},
    {"redistribute * S(0),S(0) -> S(1),S(1)", "collectives", "all_gather_into_tensor=1 all_to_all_single=1",
     "all_gather_into_tensor=2", gathers},
    {"tensor parallel, with the input's gradient", "x.grad", "[R]", "[P(sum)]", own_placements},
    {"tensor parallel, with the input's gradient", "collectives", "all_reduce=2", "all_reduce=1", own_placements},
    {"data and tensor parallel", "w1.grad", "[R, S(0)]", "[P(sum), S(0)]", own_placements},
    {"data and tensor parallel", "b1.grad", "[R, S(0)]", "[P(sum), S(0)]", own_placements},
    {"data and tensor parallel", "w2.grad", "[R, S(1)]", "[P(sum), S(1)]", own_placements},
    {"data and tensor parallel", "collectives", "all_reduce=4", "all_reduce=1", own_placements},
    {"layer norm of a sharded sequence", "weight.grad", "[R]", "[P(sum)]", own_placements},
    {"layer norm of a sharded sequence", "bias.grad", "[R]", "[P(sum)]", own_placements},
    {"layer norm of a sharded sequence", "collectives", "all_reduce=2", "none", own_placements},
    {"embedding by rows", "table.grad", "[S(0)]", "[R]", own_placements},
    {"view: merge, the second sharded", "run", "yes", "refused",
     "a strided shard describes the result, and nothing moves (as in PyTorch 2.14)", false},
    {"softmax, the normalized dimension sharded", "collectives", "all_reduce=2", "all_gather_into_tensor=1",
     "two numbers per row are reduced, and no row is gathered"},
    {"mean of the sharded dimension", "reduced", "[P(sum)]", "[P(avg)]", by_sum},
    {"relu of a Partial", "result", "[S(0)]", "[R]", cheapest},
    {"relu of a Partial", "collectives", "reduce_scatter_tensor=1", "all_reduce=1", cheapest},
};

struct Findings {
  std::map<const Difference*, int> listed;
  std::set<std::string> others;
  int compared = 0;
};

void note(Findings& findings, const std::string& program, const std::string& what, const std::string& ours,
          const std::string& theirs) {
  ++findings.compared;
  if (ours == theirs) return;
  for (const auto& each : intended) {
    if (::fnmatch(each.program, program.c_str(), 0) == 0 && what == each.what && ours == each.ours &&
        theirs == each.theirs) {
      ++findings.listed[&each];
      return;
    }
  }
  findings.others.insert(program + ": " + what + ": ours " + ours + ", PyTorch's " + theirs);
}

template <class Numbers>
std::string list_text(const Numbers& numbers) {
  std::string text;
  for (const auto each : numbers) text += (text.empty() ? "" : " ") + std::to_string(each);
  return "(" + text + ")";
}

bool is_close(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [&](double x, double y) {
           return std::abs(x - y) <= bound * std::max(1.0, std::abs(y));
         });
}

void compare(const Value& ours, const Value& theirs, const std::string& program, double bound, Findings& findings) {
  const auto what = ours.title;
  note(findings, program, what, ours.placements, theirs.placements);
  note(findings, program, what + " global sizes", list_text(ours.global), list_text(theirs.global));
  const auto same = [&](const char* part, bool is_same) {
    note(findings, program, what + part, is_same ? "same values" : "other values", "same values");
  };
  same(", the whole", is_close(ours.full, theirs.full, bound));
  if (ours.placements != theirs.placements) return;
  note(findings, program, what + " local sizes", list_text(ours.local), list_text(theirs.local));
  // Summands may be any that add up, and the elements of a strided shard do not begin at one place.
  const auto is_plain = ours.placements.find_first_of("P_") == std::string::npos;
  if (!is_plain) return;
  if (!theirs.offset.empty() && !ours.part.empty()) {
    note(findings, program, what + " offset", list_text(ours.offset), list_text(theirs.offset));
  }
  same(", the part", is_close(ours.part, theirs.part, bound));
}

void compare(const std::vector<Record>& ours, const std::vector<Record>& theirs, Findings& findings) {
  note(findings, "all", "number of programs", std::to_string(ours.size()), std::to_string(theirs.size()));
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    const auto& mine = ours[i];
    const auto& other = theirs[i];
    note(findings, mine.program, "name", mine.program, other.program);
    if (!other.refused.empty()) {
      note(findings, mine.program, "run", "yes", "refused");
      continue;
    }
    const bool only_moves = mine.program.starts_with("redistribute") && mine.program.find("P(") == std::string::npos;
    const double bound = only_moves ? 0 : 1e-10;
    note(findings, mine.program, "collectives", collectives_text(mine.collectives),
         collectives_text(other.collectives));
    note(findings, mine.program, "values kept", std::to_string(mine.values.size()),
         std::to_string(other.values.size()));
    for (std::size_t v = 0; v < std::min(mine.values.size(), other.values.size()); ++v) {
      compare(mine.values[v], other.values[v], mine.program, bound, findings);
    }
  }
}

int compare_all(const std::filesystem::path& folder) {
  Findings findings;
  std::size_t programs = 0;
  for (const int ranks : {2, 4}) {
    std::vector<std::vector<Record>> records(static_cast<std::size_t>(ranks));
    with_torch_threads(ranks, [&](const ProcessGroupPtr& group) {
      records[static_cast<std::size_t>(group->rank())] = run_programs(group);
    });
    for (std::size_t rank = 0; rank < records.size(); ++rank) {
      compare(records[rank],
              read_records(folder / ("ranks" + std::to_string(ranks)) / ("rank" + std::to_string(rank) + ".txt")),
              findings);
    }
    programs += records[0].size();
  }
  std::printf("%zu programs, %d comparisons, %zu of %zu intended differences, %zu others\n", programs,
              findings.compared, findings.listed.size(), intended.size(), findings.others.size());
  for (const auto& each : intended) {
    const auto found = findings.listed.find(&each);
    const auto count = found == findings.listed.end() ? 0 : found->second;
    std::printf("  %-44s %-12s ours %s, PyTorch's %s: %s (%d times)\n", each.program, each.what, each.ours, each.theirs,
                each.why, count);
  }
  for (const auto& each : findings.others) std::printf("NOT INTENDED: %s\n", each.c_str());
  const bool all_seen = std::ranges::all_of(
      intended, [&](const auto& each) { return !each.of_every_version || findings.listed.contains(&each); });
  return findings.others.empty() && all_seen && !::testing::Test::HasFailure() ? 0 : 1;
}

}  // namespace
}  // namespace cohort::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);  // the ranks report what they throw as failures
  if (argc != 2) {
    std::fprintf(stderr, "usage: torch_dtensor_oracle FOLDER (which dtensor_reference.py has written)\n");
    return 2;
  }
  try {
    return cohort::test::compare_all(argv[1]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "torch_dtensor_oracle: %s\n", e.what());
    return 1;
  }
}
