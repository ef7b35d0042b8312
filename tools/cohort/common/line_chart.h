// SPDX-License-Identifier: BSD-3-Clause
//
// Pictures (SVG) of lines over a logarithmic axis, in rows of at most two charts that share a legend.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cohort::tool {

struct ChartPoint {
  double x;
  double y;
};

struct ChartLine {
  std::string label;
  bool is_thin = false;
  std::vector<ChartPoint> points{};
};

/// On the axis that goes across.
struct ChartTick {
  double at;
  std::string label;
};

enum class ChartScale : std::uint8_t {
  logarithmic,  ///< whole decades
  linear,       ///< from 0
};

struct Chart {
  std::string title{};
  std::vector<ChartLine> lines{};  ///< the style of a line is that of its index
  std::vector<ChartTick> ticks{};
  ChartScale up = ChartScale::logarithmic;
};

/// The legend is that of the first chart. A chart without points leaves its place empty.
using ChartRow = std::vector<Chart>;

std::string draw_charts(const std::vector<ChartRow>& rows);

}  // namespace cohort::tool
