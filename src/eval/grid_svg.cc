#include <fmt/format.h>

#include <algorithm>

#include "eval/report.h"

namespace farsight::eval {
namespace {

constexpr int kCellWidth = 44, kCellHeight = 22, kLeft = 64, kTop = 30, kGap = 18;

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

// Dark red for none, pale yellow for half, dark green for all.
std::string Colour(double share) {
  const double low[3] = {178, 24, 43}, middle[3] = {247, 239, 187}, high[3] = {26, 120, 80};
  int rgb[3];
  for (int i = 0; i < 3; ++i) {
    const double t = share < 0.5 ? 2 * share : 2 * share - 1;
    const double from = share < 0.5 ? low[i] : middle[i];
    const double to = share < 0.5 ? middle[i] : high[i];
    rgb[i] = static_cast<int>(from + (to - from) * t + 0.5);
  }
  return fmt::format("#{:02x}{:02x}{:02x}", rgb[0], rgb[1], rgb[2]);
}

std::string Text(int x, int y, const char* anchor, const std::string& text, const char* extra = "") {
  return fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, extra, Escape(text));
}

std::string DrawCell(const Cell& cell, int x, int y) {
  if (cell.n == 0) {
    return fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#ddd\"/>\n", x, y, kCellWidth - 1,
                       kCellHeight - 1);
  }
  const double share = static_cast<double>(cell.right) / static_cast<double>(cell.n);
  const char* ink = share < 0.2 || share > 0.8 ? " fill=\"#fff\"" : "";
  return fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{} of {}</title></rect>\n",
                     x, y, kCellWidth - 1, kCellHeight - 1, Colour(share), cell.right, cell.n) +
         Text(x + kCellWidth / 2, y + 15, "middle", fmt::format("{:.0f}", 100 * share), ink);
}

}  // namespace

std::string DrawGrid(const Grid& grid, const std::vector<std::string>& labels, const std::vector<Cell>& cells,
                     const std::string& title) {
  const auto columns = static_cast<int>(grid.axis.size());
  const auto rows = static_cast<int>(grid.lengths.size());
  const auto panels = static_cast<int>(labels.size());
  const int panel_height = kTop + rows * kCellHeight + kGap;
  const int width = std::max(kLeft + columns * kCellWidth + 12, 420);
  const int height = 34 + panels * panel_height;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      width, height);
  svg += Text(12, 20, "start", title, " font-size=\"13\" font-weight=\"bold\"");
  for (int p = 0; p < panels; ++p) {
    const int top = 34 + p * panel_height;
    svg += Text(12, top + 12, "start", labels[static_cast<size_t>(p)], " font-weight=\"bold\"");
    for (int c = 0; c < columns; ++c) {
      const std::string unit = grid.task == Task::kNeedle ? " %" : "";
      svg += Text(kLeft + c * kCellWidth + kCellWidth / 2, top + kTop - 4, "middle",
                  std::to_string(grid.axis[static_cast<size_t>(c)]) + unit);
    }
    for (int r = 0; r < rows; ++r) {
      svg += Text(kLeft - 6, top + kTop + r * kCellHeight + 15, "end",
                  std::to_string(grid.lengths[static_cast<size_t>(r)]));
      for (int c = 0; c < columns; ++c) {
        const auto at = static_cast<size_t>((r * columns + c) * panels + p);
        svg += DrawCell(cells[at], kLeft + c * kCellWidth, top + kTop + r * kCellHeight);
      }
    }
  }
  return svg + "</svg>\n";
}

}  // namespace farsight::eval
