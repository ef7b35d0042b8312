// SPDX-License-Identifier: BSD-3-Clause
#include "bench/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include "bench/table.h"
#include "measure/sizes.h"

namespace cohort::bench {

namespace {

constexpr double panel_width = 400;
constexpr double panel_height = 300;
constexpr double left = 70;   // of a panel's axis: room for its labels
constexpr double gap = 90;    // between panels
constexpr double above = 54;  // the titles
constexpr double below = 56;  // the size labels
constexpr double legend_left = left + 2 * panel_width + gap + 24;
constexpr double legend_width = 230;
constexpr double legend_step = 17;

// Distinct also for people who do not see red and green alike (Okabe and Ito 2008), then repeated with dashes.
constexpr std::array<std::string_view, 7> colours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                  "#e69f00", "#56b4e9", "#333333"};
constexpr std::array<std::string_view, 3> dashes{"none", "6 3", "2 3"};

struct Style {
  std::string_view colour;
  std::string_view dash;
  double width;
};

Style style_of(std::size_t index, bool is_peer) {
  return {colours[index % colours.size()], dashes[index / colours.size() % dashes.size()], is_peer ? 1.2 : 2.6};
}

std::string escape(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text, int size = 11) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y, anchor,
                     size, escape(text));
}

std::string rule(double x1, double y1, double x2, double y2, std::string_view colour) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2, y2,
                     colour);
}

struct Point {
  double x;
  double y;
};

struct Line {
  std::string label;
  bool is_peer;
  std::vector<Point> points;
};

/// A logarithmic axis that covers its values.
class Axis {
 public:
  void cover(double value) {
    low_ = std::min(low_, std::log10(value));
    high_ = std::max(high_, std::log10(value));
  }
  void widen_to_decades() {
    low_ = std::floor(low_);
    high_ = std::max(std::ceil(high_), low_ + 1);
  }
  /// 0 at the low end, 1 at the high one.
  double place(double value) const { return high_ > low_ ? (std::log10(value) - low_) / (high_ - low_) : 0.5; }
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double low_ = 1e9;
  double high_ = -1e9;
};

class Panel {
 public:
  Panel(double x, double y, std::vector<Line> lines) : x_(x), y_(y), lines_(std::move(lines)) {
    for (const auto& line : lines_) {
      for (const auto& point : line.points) {
        across_.cover(point.x);
        up_.cover(point.y);
      }
    }
    up_.widen_to_decades();
  }

  std::string draw(std::string_view title, const std::vector<std::size_t>& sizes) const {
    auto svg = text_at(x_ + panel_width / 2, y_ - 10, "middle", title, 13);
    svg += decades() + size_ticks(sizes);
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" "
        "stroke=\"#666\"/>\n",
        x_, y_, panel_width, panel_height);
    for (std::size_t i = 0; i < lines_.size(); ++i) svg += curve(lines_[i], style_of(i, lines_[i].is_peer));
    return svg;
  }

 private:
  double left_of(double value) const { return x_ + across_.place(value) * panel_width; }
  double top_of(double value) const { return y_ + panel_height - up_.place(value) * panel_height; }

  std::string decades() const {
    std::string svg;
    for (int decade = static_cast<int>(up_.low()); decade <= static_cast<int>(up_.high()); ++decade) {
      const double value = std::pow(10, decade);
      svg += rule(x_, top_of(value), x_ + panel_width, top_of(value), "#ddd");
      svg += text_at(x_ - 6, top_of(value) + 4, "end", fmt::format("{:g}", value));
    }
    return svg;
  }

  std::string size_ticks(const std::vector<std::size_t>& sizes) const {
    std::string svg;
    constexpr double room = 26;  // a slanted label's
    double last = -room;
    for (const auto size : sizes) {
      const double at = left_of(static_cast<double>(size));
      svg += rule(at, y_ + panel_height, at, y_ + panel_height + 4, "#666");
      if (at - last < room) continue;
      last = at;
      svg += fmt::format(
          "<text transform=\"translate({:.1f} {:.1f}) rotate(-35)\" text-anchor=\"end\" "
          "font-size=\"11\">{}</text>\n",
          at + 4, y_ + panel_height + 15, format_size(size));
    }
    return svg;
  }

  std::string curve(const Line& line, const Style& style) const {
    if (line.points.empty()) return {};
    std::string path;
    std::string marks;
    for (const auto& point : line.points) {
      path += fmt::format("{:.1f},{:.1f} ", left_of(point.x), top_of(point.y));
      marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\" fill=\"{}\"/>\n", left_of(point.x),
                           top_of(point.y), std::max(style.width, 2.0), style.colour);
    }
    path.pop_back();
    return fmt::format(
               "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\" "
               "stroke-dasharray=\"{}\"/>\n",
               path, style.colour, style.width, style.dash) +
           marks;
  }

  double x_;
  double y_;
  std::vector<Line> lines_;
  Axis across_;
  Axis up_;
};

using Value = std::function<double(const Comparison&, double microseconds)>;

/// One line for each contestant, at the same index whether or not it has points: that is its style.
std::vector<Line> lines_of(const std::vector<const Comparison*>& comparisons, const Value& value) {
  std::vector<Line> lines;
  for (const auto& row : comparisons.front()->rows)
    lines.push_back({row.contestant.label(), row.contestant.is_peer, {}});
  for (const auto* const comparison : comparisons) {
    for (std::size_t i = 0; i < comparison->rows.size(); ++i) {
      const auto& row = comparison->rows[i];
      const auto& outcome = row.in_place.has_figures() ? row.in_place : row.out_of_place;
      if (!outcome.has_figures()) continue;
      const double y = value(*comparison, summarize(outcome.rounds).p50);
      // A barrier has no size; its point stands at 1 byte.
      if (y > 0) lines[i].points.push_back({std::max(static_cast<double>(comparison->bytes), 1.0), y});
    }
  }
  return lines;
}

std::string legend(double y, const std::vector<Line>& lines) {
  std::string svg;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto style = style_of(i, lines[i].is_peer);
    const double at = y + 10 + static_cast<double>(i) * legend_step;
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"{:g}\" stroke-dasharray=\"{}\"/>\n",
        legend_left, at - 4, legend_left + 28, at - 4, style.colour, style.width, style.dash);
    svg += text_at(legend_left + 36, at, "start", lines[i].label, 12);
  }
  return svg;
}

bool has_points(const std::vector<Line>& lines) {
  return std::any_of(lines.begin(), lines.end(), [](const Line& line) { return !line.points.empty(); });
}

std::string draw_operation(double y, const std::vector<const Comparison*>& comparisons) {
  std::vector<std::size_t> sizes;
  sizes.reserve(comparisons.size());
  for (const auto* const comparison : comparisons) sizes.push_back(comparison->bytes);
  const auto& first = *comparisons.front();
  const auto name = fmt::format("{}, {} ranks", to_string(first.command.operation), first.ranks);

  const auto times = lines_of(comparisons, [](const Comparison&, double us) { return us; });
  const auto rates = lines_of(comparisons, [](const Comparison& c, double us) { return bandwidth(c, us).bus; });
  std::string svg;
  if (has_points(times)) svg += Panel(left, y, times).draw(name + ": time, us (median)", sizes);
  if (has_points(rates)) {
    svg += Panel(left + panel_width + gap, y, rates).draw(name + ": bus bandwidth, GB/s", sizes);
  }
  return svg + legend(y, times);
}

}  // namespace

std::string to_svg(const std::vector<Comparison>& comparisons) {
  std::vector<std::vector<const Comparison*>> by_operation;
  for (const auto& comparison : comparisons) {
    const auto same = std::find_if(by_operation.begin(), by_operation.end(), [&](const auto& group) {
      return group.front()->command.operation == comparison.command.operation;
    });
    if (same == by_operation.end()) {
      by_operation.push_back({&comparison});
    } else {
      same->push_back(&comparison);
    }
  }
  double y = 0;
  std::string body;
  for (const auto& group : by_operation) {
    body += draw_operation(y + above, group);
    const double legend_height = static_cast<double>(group.front()->rows.size()) * legend_step;
    y += above + std::max(panel_height + below, legend_height + 20);
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{2}</svg>\n",
      legend_left + legend_width, y, body);
}

}  // namespace cohort::bench
