// Results as text: markdown, CSV or JSON, and a picture of a grid.
#ifndef FARSIGHT_EVAL_REPORT_H_
#define FARSIGHT_EVAL_REPORT_H_

#include <string>
#include <utility>
#include <vector>

#include "eval/likelihood.h"
#include "eval/retrieval.h"

namespace farsight::eval {

enum class Format { kMarkdown, kJson, kCsv };
StatusOr<Format> ParseFormat(const std::string& name);  // "md", "json", "csv"

// A table: columns named once, values as they are printed. JSON gets the unrounded numbers.
class Table {
 public:
  struct Value {
    enum class Kind { kText, kInteger, kReal, kNone } kind = Kind::kNone;
    std::string text;
    int64_t integer = 0;
    double real = 0;
    int digits = 4;  // of a real number in markdown
  };
  static Value Text(std::string text);
  static Value Integer(int64_t value);
  static Value Real(double value, int digits);

  explicit Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}
  void Add(std::vector<Value> row) { rows_.push_back(std::move(row)); }
  // Rows as one JSON array of objects, as CSV with a header, or as a markdown table; a line break at the end.
  std::string Print(Format format) const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<Value>> rows_;
};

// A long table for programs (a row a cell), a wide one for people (a row a policy and length, a column an axis value).
// Shares are percent in markdown and 0 to 1 elsewhere; low and high are Wilson's 95 % interval.
std::string PrintGrid(const Grid& grid, const PolicyEngines& engines, const std::vector<Cell>& cells,
                      const std::string& model, Format format);

// A self-contained SVG: for every variant a map of lengths by axis values, coloured by the share of right answers.
std::string DrawGrid(const Grid& grid, const std::vector<std::string>& labels, const std::vector<Cell>& cells,
                     const std::string& title);

}  // namespace farsight::eval

#endif  // FARSIGHT_EVAL_REPORT_H_
