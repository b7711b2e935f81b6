#include "sched/draft_paths.h"

#include <algorithm>
#include <numeric>

namespace farsight {

DraftPaths PathsOf(std::span<const int32_t> parents) {
  const size_t n = parents.size();
  DraftPaths out;
  out.table.assign(n, -1);
  out.depth.assign(n, 0);
  std::vector<uint8_t> leaf(n, 1);
  for (size_t i = 1; i < n; ++i) {
    const auto parent = static_cast<size_t>(parents[i]);
    leaf[parent] = 0;
    out.depth[i] = out.depth[parent] + 1;
  }
  for (size_t i = 0; i < n; ++i) {
    if (leaf[i] == 0) continue;
    const auto path = static_cast<int32_t>(out.rows.size());
    std::vector<int32_t>& rows = out.rows.emplace_back();
    for (auto at = static_cast<int32_t>(i); at >= 0; at = parents[static_cast<size_t>(at)]) {
      rows.push_back(at);
      if (int32_t& table = out.table[static_cast<size_t>(at)]; table < 0) table = path;
    }
    std::reverse(rows.begin(), rows.end());
  }
  return out;
}

DraftPaths ChainPath(int rows) {
  DraftPaths out;
  out.depth.resize(static_cast<size_t>(rows));
  std::iota(out.depth.begin(), out.depth.end(), 0);
  out.rows.push_back(out.depth);
  out.table.assign(out.depth.size(), 0);
  return out;
}

}  // namespace farsight
