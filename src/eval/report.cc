#include "eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/statistics.h"

namespace farsight::eval {
namespace {

using Json = nlohmann::ordered_json;

std::string Plain(const Table::Value& v, bool rounded) {
  switch (v.kind) {
    case Table::Value::Kind::kText:
      return v.text;
    case Table::Value::Kind::kInteger:
      return std::to_string(v.integer);
    case Table::Value::Kind::kReal:
      return rounded ? fmt::format("{:.{}f}", v.real, v.digits) : fmt::format("{}", v.real);
    case Table::Value::Kind::kNone:
      return "";
  }
  return "";
}

std::string CsvField(const std::string& s) {
  if (s.find_first_of(",\"\n") == std::string::npos) return s;
  std::string out(1, '"');
  for (const char c : s) out.append(c == '"' ? 2 : 1, c);
  out.push_back('"');
  return out;
}

Json ToJson(const Table::Value& v) {
  switch (v.kind) {
    case Table::Value::Kind::kText:
      return v.text;
    case Table::Value::Kind::kInteger:
      return v.integer;
    case Table::Value::Kind::kReal:
      return v.real;
    case Table::Value::Kind::kNone:
      return nullptr;
  }
  return nullptr;
}

double Ratio(int64_t a, int64_t b) { return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0; }

const char* FormName(const Grid& grid) {
  return grid.task != Task::kCopy && grid.form == Form::kQuestion ? "question" : "completion";
}

std::string PrintLong(const Grid& grid, const PolicyEngines& engines, const std::vector<Cell>& cells,
                      const std::string& model, Format format) {
  Table table({"model", "task", "form", "seed", "attention", "top_k_blocks", "sketch_bits", "length",
               AxisName(grid.task), "n", "right", "share", "low", "high", "answer_share", "blocks_read",
               "blocks_held"});
  for (const Cell& c : cells) {
    if (c.n == 0) continue;
    const Variant& v = engines.variant(c.variant);
    const Interval ci = Wilson(c.right, c.n);
    table.Add({Table::Text(model), Table::Text(TaskName(grid.task)), Table::Text(FormName(grid)),
               Table::Integer(static_cast<int64_t>(grid.seed)), Table::Text(v.Name()), Table::Integer(v.blocks),
               Table::Integer(v.Bits()), Table::Integer(c.length), Table::Integer(c.axis), Table::Integer(c.n),
               Table::Integer(c.right), Table::Real(Ratio(c.right, c.n), 4), Table::Real(ci.low, 4),
               Table::Real(ci.high, 4), Table::Real(c.queries > 0 ? c.share / static_cast<double>(c.queries) : 0, 4),
               Table::Integer(c.blocks_read), Table::Integer(c.blocks_held)});
  }
  return table.Print(format);
}

// A row of the wide table: one variant at one length.
std::vector<Table::Value> WideRow(const Grid& grid, const Variant& v, int64_t length, const std::vector<Cell>& cells) {
  int64_t n = 0, right = 0, read = 0, held = 0, queries = 0;
  double share = 0;
  std::vector<Table::Value> by_axis;
  for (const Cell& c : cells) {
    n += c.n;
    right += c.right;
    share += c.share;
    queries += c.queries;
    read += c.blocks_read;
    held += c.blocks_held;
    by_axis.push_back(c.n > 0 ? Table::Real(100 * Ratio(c.right, c.n), 0) : Table::Value{});
  }
  const Interval ci = Wilson(right, n);
  std::vector<Table::Value> row = {Table::Text(v.Label())};
  if (grid.task != Task::kCopy) row.push_back(Table::Integer(length));
  row.push_back(Table::Integer(n));
  row.push_back(
      Table::Text(fmt::format("{:.1f} [{:.1f}, {:.1f}]", 100 * Ratio(right, n), 100 * ci.low, 100 * ci.high)));
  if (grid.task == Task::kMultiNeedle || grid.task == Task::kCopy)
    row.push_back(Table::Real(queries > 0 ? 100 * share / static_cast<double>(queries) : 0, 1));
  row.push_back(Table::Real(100 * Ratio(read, held), 1));
  row.insert(row.end(), by_axis.begin(), by_axis.end());
  return row;
}

std::string PrintWide(const Grid& grid, const PolicyEngines& engines, const std::vector<Cell>& cells) {
  std::vector<std::string> columns = {"attention"};
  if (grid.task != Task::kCopy) columns.emplace_back("length");
  columns.insert(columns.end(), {"n", "right %"});
  if (grid.task == Task::kMultiNeedle) columns.emplace_back("needles found %");
  if (grid.task == Task::kCopy) columns.emplace_back("words before a mistake %");
  columns.emplace_back("blocks read %");
  for (const int64_t a : grid.axis) {
    columns.push_back(grid.task == Task::kNeedle ? fmt::format("at {} %", a)
                                                 : fmt::format("{} {}", a, AxisName(grid.task)));
  }
  Table table(columns);
  const size_t per_length = grid.axis.size() * engines.size();
  for (size_t l = 0; l < grid.lengths.size(); ++l) {
    for (size_t v = 0; v < engines.size(); ++v) {
      std::vector<Cell> row;
      for (size_t a = 0; a < grid.axis.size(); ++a) row.push_back(cells[l * per_length + a * engines.size() + v]);
      if (std::all_of(row.begin(), row.end(), [](const Cell& c) { return c.n == 0; })) continue;  // stopped before it
      table.Add(WideRow(grid, engines.variant(v), grid.lengths[l], row));
    }
  }
  return table.Print(Format::kMarkdown);
}

}  // namespace

StatusOr<Format> ParseFormat(const std::string& name) {
  if (name == "md") return Format::kMarkdown;
  if (name == "json") return Format::kJson;
  if (name == "csv") return Format::kCsv;
  return InvalidArgument("unknown output format '" + name + "': expected md, json or csv");
}

Table::Value Table::Text(std::string text) {
  Value v;
  v.kind = Value::Kind::kText;
  v.text = std::move(text);
  return v;
}

Table::Value Table::Integer(int64_t value) {
  Value v;
  v.kind = Value::Kind::kInteger;
  v.integer = value;
  return v;
}

Table::Value Table::Real(double value, int digits) {
  Value v;
  v.kind = Value::Kind::kReal;
  v.real = value;
  v.digits = digits;
  return v;
}

std::string Table::Print(Format format) const {
  std::string out;
  if (format == Format::kJson) {
    Json array = Json::array();
    for (const auto& row : rows_) {
      Json object = Json::object();
      for (size_t i = 0; i < columns_.size(); ++i) object[columns_[i]] = ToJson(row[i]);
      array.push_back(std::move(object));
    }
    return array.dump(1) + "\n";
  }
  const bool csv = format == Format::kCsv;
  const auto line = [&](const std::vector<std::string>& fields) {
    for (size_t i = 0; i < fields.size(); ++i) {
      out += csv ? (i == 0 ? "" : ",") : (i == 0 ? "| " : " | ");
      out += csv ? CsvField(fields[i]) : fields[i];
    }
    out += csv ? "\n" : " |\n";
  };
  line(columns_);
  if (!csv) line(std::vector<std::string>(columns_.size(), "---"));
  for (const auto& row : rows_) {
    std::vector<std::string> fields;
    for (const auto& v : row) fields.push_back(Plain(v, !csv));
    line(fields);
  }
  return out;
}

std::string PrintGrid(const Grid& grid, const PolicyEngines& engines, const std::vector<Cell>& cells,
                      const std::string& model, Format format) {
  if (format == Format::kMarkdown) return PrintWide(grid, engines, cells);
  return PrintLong(grid, engines, cells, model, format);
}

}  // namespace farsight::eval
