// A tree of guesses as the paths it is made of: what a cache of consecutive positions can hold.
#ifndef FARSIGHT_SCHED_DRAFT_PATHS_H_
#define FARSIGHT_SCHED_DRAFT_PATHS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace farsight {

// Rows of a step: row 0 is the sequence's last token, the others are guesses, parents before children.
struct DraftPaths {
  std::vector<std::vector<int32_t>> rows;  // [paths] rows from row 0 to a leaf; paths in the order of their leaves
  std::vector<int32_t> table;              // [rows] the first path through the row, in whose blocks it is computed
  std::vector<int32_t> depth;              // [rows]
};
// parents: [rows], -1 for row 0.
DraftPaths PathsOf(std::span<const int32_t> parents);
// The same for a chain of `rows` rows.
DraftPaths ChainPath(int rows);

}  // namespace farsight

#endif  // FARSIGHT_SCHED_DRAFT_PATHS_H_
