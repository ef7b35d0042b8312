// SPDX-License-Identifier: BSD-3-Clause
//
// The lists of operators in docs/dtensor.md are those of the rule table.
#include "torch/dtensor/rule_table.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace cohort::test {
namespace {

using Names = std::set<std::string>;
using Families = std::map<std::string, Names>;

/// A rule's operator without namespace and overload; nothing if this libtorch has no such operator, or if it is a
/// variant that writes to an `out` argument.
std::string base_name(const std::string& op) {
  const auto dot = op.find('.');
  const auto name = op.substr(0, dot);
  const auto overload = dot == std::string::npos ? std::string() : op.substr(dot + 1);
  if (overload.ends_with("out")) return {};
  if (!c10::Dispatcher::singleton().findSchema({name, overload})) return {};
  return name.substr(name.rfind(':') + 1);
}

/// As the guide writes them: add[_] stands for add and add_.
Families families_of_table() {
  Families families;
  for (const auto& [family, ops] : dtensor::rule_table().families()) {
    if (family == "user") continue;
    Names names;
    for (const auto& op : ops) names.insert(base_name(op));
    names.erase("");
    for (const auto& name : names) {
      if (name.ends_with('_') && names.contains(name.substr(0, name.size() - 1))) continue;
      families[family].insert(names.contains(name + "_") ? name + "[_]" : name);
    }
  }
  return families;
}

/// A list in the guide stands between <!-- rules: FAMILY --> and <!-- end -->, each name in backticks.
Families families_of_guide() {
  std::ifstream file(COHORT_TORCH_TESTS_FOLDER "/../../docs/dtensor.md");
  Families families;
  std::string family;
  const std::string begin = "<!-- rules: ";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(begin)) {
      family = line.substr(begin.size(), line.find(' ', begin.size()) - begin.size());
      families[family];
    } else if (line == "<!-- end -->") {
      family.clear();
    } else if (!family.empty()) {
      for (auto open = line.find('`'); open != std::string::npos;) {
        const auto close = line.find('`', open + 1);
        if (close == std::string::npos) break;
        families[family].insert(line.substr(open + 1, close - open - 1));
        open = line.find('`', close + 1);
      }
    }
  }
  return families;
}

std::string as_in_guide(const Families& families) {
  constexpr std::size_t columns = 120;
  std::ostringstream out;
  for (const auto& [family, names] : families) {
    out << "<!-- rules: " << family << " -->\n";
    std::size_t column = 0;
    for (const auto& name : names) {
      const auto text = "`" + name + (name == *names.rbegin() ? "`" : "`,");
      if (column + 1 + text.size() > columns) column = 0;
      if (name != *names.begin()) out << (column == 0 ? '\n' : ' ');
      out << text;
      column += text.size() + (column == 0 ? 0 : 1);
    }
    out << "\n<!-- end -->\n";
  }
  return out.str();
}

TEST(DTensorRules, AreAllInTheGuide) {
  const auto expected = families_of_table();
  EXPECT_TRUE(families_of_guide() == expected) << "docs/dtensor.md should have these lists:\n" << as_in_guide(expected);
}

}  // namespace
}  // namespace cohort::test
