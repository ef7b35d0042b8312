// SPDX-License-Identifier: BSD-3-Clause
#include "common/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace cohort::tool {

namespace {

constexpr double panel_width = 400;
constexpr double panel_height = 300;
constexpr double left = 70;   // of a panel's axis: room for its labels
constexpr double gap = 90;    // between panels
constexpr double above = 54;  // the titles
constexpr double below = 56;  // the labels of the ticks
constexpr double legend_width = 230;
constexpr double legend_step = 17;

// Distinct also for people who do not see red and green alike (Okabe and Ito 2008), then repeated with dashes.
constexpr std::array<std::string_view, 7> line_colours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                       "#e69f00", "#56b4e9", "#333333"};
constexpr std::array<std::string_view, 3> dashes{"none", "6 3", "2 3"};

struct Style {
  std::string_view colour;
  std::string_view dash;
  double width;
};

Style style_of(std::size_t index, bool is_thin) {
  return {line_colours[index % line_colours.size()], dashes[index / line_colours.size() % dashes.size()],
          is_thin ? 1.2 : 2.6};
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

/// An axis that covers its values.
class Axis {
 public:
  explicit Axis(ChartScale scale = ChartScale::logarithmic) : scale_(scale) {}

  void cover(double value) {
    low_ = std::min(low_, at(value));
    high_ = std::max(high_, at(value));
  }
  void widen() {
    if (scale_ == ChartScale::logarithmic) {
      low_ = std::floor(low_);
      high_ = std::max(std::ceil(high_), low_ + 1);
      step_ = 1;
    } else {
      low_ = 0;
      step_ = round_step(std::max(high_, 1e-9) / most_steps);
      high_ = std::max(std::ceil(high_ / step_), 1.0) * step_;
    }
  }
  /// 0 at the low end, 1 at the high one.
  double place(double value) const { return high_ > low_ ? (at(value) - low_) / (high_ - low_) : 0.5; }
  /// Of a widened axis.
  std::vector<double> marks() const {
    std::vector<double> values;
    const int count = static_cast<int>(std::lround((high_ - low_) / step_));
    for (int i = 0; i <= count; ++i) {
      const double mark = low_ + i * step_;
      values.push_back(scale_ == ChartScale::logarithmic ? std::pow(10, mark) : mark);
    }
    return values;
  }

 private:
  static constexpr double most_steps = 6;

  double at(double value) const { return scale_ == ChartScale::logarithmic ? std::log10(value) : value; }

  /// The next of 1, 2, 5, 10, 20, ...
  static double round_step(double step) {
    const double decade = std::pow(10, std::floor(std::log10(step)));
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor * decade >= step) return factor * decade;
    }
    return 10 * decade;
  }

  ChartScale scale_;
  double low_ = 1e9;
  double high_ = -1e9;
  double step_ = 1;
};

class Panel {
 public:
  Panel(double x, double y, const Chart& chart) : x_(x), y_(y), chart_(chart), up_(chart.up) {
    for (const auto& line : chart.lines) {
      for (const auto& point : line.points) {
        across_.cover(point.x);
        up_.cover(point.y);
      }
    }
    up_.widen();
  }

  std::string draw() const {
    auto svg = text_at(x_ + panel_width / 2, y_ - 10, "middle", chart_.title, 13);
    svg += marks() + ticks();
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" "
        "stroke=\"#666\"/>\n",
        x_, y_, panel_width, panel_height);
    for (std::size_t i = 0; i < chart_.lines.size(); ++i)
      svg += curve(chart_.lines[i], style_of(i, chart_.lines[i].is_thin));
    return svg;
  }

 private:
  double left_of(double value) const { return x_ + across_.place(value) * panel_width; }
  double top_of(double value) const { return y_ + panel_height - up_.place(value) * panel_height; }

  std::string marks() const {
    std::string svg;
    for (const double value : up_.marks()) {
      svg += rule(x_, top_of(value), x_ + panel_width, top_of(value), "#ddd");
      svg += text_at(x_ - 6, top_of(value) + 4, "end", fmt::format("{:g}", value));
    }
    return svg;
  }

  std::string ticks() const {
    std::string svg;
    constexpr double room = 26;  // a slanted label's
    double last = -room;
    for (const auto& tick : chart_.ticks) {
      const double at = left_of(tick.at);
      svg += rule(at, y_ + panel_height, at, y_ + panel_height + 4, "#666");
      if (at - last < room) continue;
      last = at;
      svg += fmt::format(
          "<text transform=\"translate({:.1f} {:.1f}) rotate(-35)\" text-anchor=\"end\" "
          "font-size=\"11\">{}</text>\n",
          at + 4, y_ + panel_height + 15, escape(tick.label));
    }
    return svg;
  }

  std::string curve(const ChartLine& line, const Style& style) const {
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
  const Chart& chart_;
  Axis across_;
  Axis up_;
};

std::string legend(double x, double y, const std::vector<ChartLine>& lines) {
  std::string svg;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto style = style_of(i, lines[i].is_thin);
    const double at = y + 10 + static_cast<double>(i) * legend_step;
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"{:g}\" stroke-dasharray=\"{}\"/>\n",
        x, at - 4, x + 28, at - 4, style.colour, style.width, style.dash);
    svg += text_at(x + 36, at, "start", lines[i].label, 12);
  }
  return svg;
}

bool has_points(const Chart& chart) {
  return std::any_of(chart.lines.begin(), chart.lines.end(),
                     [](const ChartLine& line) { return !line.points.empty(); });
}

}  // namespace

std::string draw_charts(const std::vector<ChartRow>& rows) {
  std::size_t columns = 1;
  for (const auto& row : rows) columns = std::max(columns, row.size());
  const double legend_left = left + static_cast<double>(columns) * (panel_width + gap) - gap + 24;
  double y = 0;
  std::string body;
  for (const auto& row : rows) {
    double x = left;
    for (const auto& chart : row) {
      if (has_points(chart)) body += Panel(x, y + above, chart).draw();
      x += panel_width + gap;
    }
    body += legend(legend_left, y + above, row.front().lines);
    const double legend_height = static_cast<double>(row.front().lines.size()) * legend_step;
    y += above + std::max(panel_height + below, legend_height + 20);
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{2}</svg>\n",
      legend_left + legend_width, y, body);
}

}  // namespace cohort::tool
