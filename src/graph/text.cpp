// SPDX-License-Identifier: BSD-3-Clause
//
// Graphs as text: a line for each group, one for each value, then one for each node, followed by those of its operands,
// with values by their numbers. The nodes of a body follow theirs as "inner".
//
//   cohort graph 1
//   group "7f3a" "mesh_dp" [0,1,2,3]
//   value argument f32 4 cpu [8,16] [16,1] ""
//   value constant f32 4 cpu [16,16] [16,1] "fc.weight"
//   value result f32 4 cpu [8,16] [16,1] ""
//   node op "aten::mm" [2] [] "" 0 0 - "train.cpp:41"
//   operand "self" - [0] ""
//   operand "mat2" - [1] ""
//   outputs [2]
//   end
//
// Lists are as long as their text says, so nothing is allocated for what a hostile text only claims.
#include <cohort/error.h>
#include <cohort/torch/graph.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/parse.h"
#include "graph/names.h"

namespace cohort {

namespace {

constexpr std::string_view first_line_of_text = "cohort graph 1";

// In the order of the enumerators.
constexpr std::array<std::string_view, 4> origin_words{"argument", "gradient", "constant", "result"};
constexpr std::array<std::string_view, 5> kind_words{"op", "collective", "wait", "host", "distributed"};

/// Takes a text apart, and knows the line for errors.
class GraphReader {
 public:
  explicit GraphReader(std::string_view text) : rest_(text) {}

  Graph read() {
    next_line();
    if (line_ != first_line_of_text) {
      fail(line_.starts_with("cohort graph ") ? "the graph was written by another version"
                                              : "the text does not begin as a graph does");
    }
    Graph graph;
    for (next_line(); line_.starts_with("group "); next_line()) graph.groups.push_back(group());
    for (; line_.starts_with("value "); next_line()) graph.values.push_back(value());
    values_ = graph.values.size();
    while (line_.starts_with("node ")) {
      auto& outer = graph.nodes.emplace_back(node("node"));
      while (line_.starts_with("inner ")) outer.body.push_back(node("inner"));
      if (!outer.body.empty() && outer.kind != GraphNode::Kind::distributed) fail("the node before has a body");
    }
    word("outputs");
    graph.outputs = value_list();
    end_of_line();
    next_line();
    word("end");
    end_of_line();
    if (!rest_.empty()) fail("there is text after the end");
    return graph;
  }

 private:
  /// Together such that the bytes of a value are a number.
  static constexpr std::size_t most_element_bytes = 1024;
  static constexpr std::int64_t most_elements = std::numeric_limits<std::int64_t>::max() / 1024;
  static constexpr int most_ranks = 1 << 24;

  [[noreturn]] void fail(std::string_view what) const {
    throw ValueError(fmt::format("line {} of a captured graph: {}", line_number_, what));
  }

  void next_line() {
    ++line_number_;
    const auto end = rest_.find('\n');
    if (end == std::string_view::npos) fail(rest_.empty() ? "the text ends too early" : "the line does not end");
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    position_ = 0;
  }

  /// The next field, up to the space that separates it from another.
  std::string_view field() {
    skip_space();
    const auto begin = position_;
    position_ = std::min(line_.find(' ', begin), line_.size());
    if (position_ == begin) fail("a field is empty");
    return line_.substr(begin, position_ - begin);
  }

  void skip_space() {
    if (position_ == 0) return;
    if (position_ == line_.size()) fail("the line ends too early");
    if (line_[position_] != ' ') fail("a space is missing between two fields");
    ++position_;
  }

  void end_of_line() const {
    if (position_ != line_.size()) fail("there is more in the line than belongs there");
  }

  void word(std::string_view expected) {
    if (field() != expected) fail(fmt::format("'{}' is expected", expected));
  }

  std::size_t one_of(std::span<const std::string_view> words) {
    const auto found = std::find(words.begin(), words.end(), field());
    if (found == words.end()) fail(fmt::format("one of {} is expected", fmt::join(words, ", ")));
    return static_cast<std::size_t>(found - words.begin());
  }

  std::string name() {
    const auto text = field();
    // They are shown as they are, and have no quotes that could hold anything else.
    const bool is_printable = std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    if (!is_printable) fail("the name of a dtype or device has characters that no such name has");
    return std::string(text);
  }

  template <std::integral T>
  T number() {
    return number_from<T>(field());
  }

  template <std::integral T>
  T number_from(std::string_view text) const {
    const auto parsed = parse_integer<T>(text);
    if (!parsed) fail("a number is malformed or out of range");
    if constexpr (std::is_signed_v<T>) {
      if (*parsed < 0) fail("a number is negative");
    }
    return *parsed;
  }

  template <std::integral T>
  std::vector<T> list() {
    const auto text = field();
    if (text.size() < 2 || text.front() != '[' || text.back() != ']') fail("a list in brackets is expected");
    std::vector<T> numbers;
    const auto inside = text.substr(1, text.size() - 2);
    if (inside.empty()) return numbers;
    for (const auto each : split(inside, ',')) numbers.push_back(number_from<T>(each));
    return numbers;
  }

  std::vector<std::size_t> value_list() {
    auto numbers = list<std::size_t>();
    for (const auto each : numbers) {
      if (each >= values_) fail(fmt::format("there is no value {}: the graph has {}", each, values_));
    }
    return numbers;
  }

  std::string string() {
    skip_space();
    if (position_ == line_.size() || line_[position_] != '"') fail("a text in quotes is expected");
    std::string result;
    for (++position_; position_ < line_.size(); ++position_) {
      const char c = line_[position_];
      if (c == '"') {
        ++position_;
        return result;
      }
      result += c == '\\' ? escape() : c;
    }
    fail("a text in quotes does not end");
  }

  /// What the escape at the position means; leaves the position at its last character.
  char escape() {
    const auto after = line_.substr(position_ + 1);
    if (after.starts_with('x') && after.size() >= 3) {
      std::uint8_t code = 0;
      const auto* const end = after.data() + 3;
      if (std::from_chars(after.data() + 1, end, code, 16).ptr != end) fail("an escape has no hexadecimal number");
      position_ += 3;
      return static_cast<char>(code);
    }
    if (after.empty()) fail("a text in quotes does not end");
    ++position_;
    if (after.front() == 'n') return '\n';
    if (after.front() != '"' && after.front() != '\\') fail("an escape is not known");
    return after.front();
  }

  GraphGroup group() {
    word("group");
    GraphGroup group{.id = string(), .label = string(), .ranks = list<int>()};
    end_of_line();
    return group;
  }

  GraphValue value() {
    word("value");
    GraphValue value{.origin = static_cast<GraphValue::Origin>(one_of(origin_words))};
    value.dtype = name();
    value.element_bytes = number<std::size_t>();
    if (value.element_bytes > most_element_bytes) fail("an element has too many bytes");
    value.device = name();
    value.sizes = list<std::int64_t>();
    value.strides = list<std::int64_t>();
    value.name = string();
    end_of_line();
    if (value.sizes.size() != value.strides.size()) fail("there are not as many strides as sizes");
    std::int64_t elements = 1;
    for (const auto size : value.sizes) {
      if (size > 0 && elements > most_elements / size) fail("the tensor has too many elements");
      elements *= std::max<std::int64_t>(size, 1);
    }
    return value;
  }

  GraphNode node(std::string_view first_word) {
    word(first_word);
    GraphNode node{.kind = static_cast<GraphNode::Kind>(one_of(kind_words)), .name = string()};
    node.results = value_list();
    node.writes = value_list();
    node.group = string();
    node.group_size = number<int>();
    if (node.group_size > most_ranks) fail("a group has too many ranks");
    node.bytes = number<std::size_t>();
    node.is_async = one_of(std::array<std::string_view, 2>{"-", "async"}) == 1;
    node.source = string();
    end_of_line();
    for (next_line(); line_.starts_with("operand "); next_line()) node.operands.push_back(operand());
    return node;
  }

  GraphOperand operand() {
    word("operand");
    GraphOperand operand{.name = string()};
    operand.is_list = one_of(std::array<std::string_view, 2>{"-", "list"}) == 1;
    operand.values = value_list();
    operand.text = string();
    end_of_line();
    return operand;
  }

  std::string_view rest_;
  std::string_view line_;
  std::size_t line_number_ = 0;
  std::size_t position_ = 0;  // in the line
  std::size_t values_ = 0;
};

}  // namespace

std::string serialize(const Graph& graph) {
  using graph_names::in_quotes;
  std::string text;
  const auto add = [&text]<class... Arguments>(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Arguments>(arguments)...);
  };
  add("{}\n", first_line_of_text);
  for (const auto& group : graph.groups) {
    add("group {} {} [{}]\n", in_quotes(group.id), in_quotes(group.label), fmt::join(group.ranks, ","));
  }
  for (const auto& value : graph.values) {
    add("value {} {} {} {} [{}] [{}] {}\n", origin_words.at(static_cast<std::size_t>(value.origin)), value.dtype,
        value.element_bytes, value.device, fmt::join(value.sizes, ","), fmt::join(value.strides, ","),
        in_quotes(value.name));
  }
  const auto add_node = [&](std::string_view first_word, const GraphNode& node) {
    add("{} {} {} [{}] [{}] {} {} {} {} {}\n", first_word, kind_words.at(static_cast<std::size_t>(node.kind)),
        in_quotes(node.name), fmt::join(node.results, ","), fmt::join(node.writes, ","), in_quotes(node.group),
        node.group_size, node.bytes, node.is_async ? "async" : "-", in_quotes(node.source));
    for (const auto& operand : node.operands) {
      add("operand {} {} [{}] {}\n", in_quotes(operand.name), operand.is_list ? "list" : "-",
          fmt::join(operand.values, ","), in_quotes(operand.text));
    }
  };
  for (const auto& node : graph.nodes) {
    add_node("node", node);
    for (const auto& each : node.body) add_node("inner", each);
  }
  add("outputs [{}]\nend\n", fmt::join(graph.outputs, ","));
  return text;
}

Graph read_graph(std::string_view text) {
  return GraphReader(text).read();
}

}  // namespace cohort
