// Small parts of a step in the forward: the lists of a layer, and rows that belong to several block tables.
#ifndef FARSIGHT_MODEL_STEP_ROWS_H_
#define FARSIGHT_MODEL_STEP_ROWS_H_

#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "model/runner.h"
#include "ops/params.h"

namespace farsight {

struct LayerList {
  int layer = 0;
  Buffer counts, ids, scores;
  std::vector<int32_t> host_counts, host_ids;
  std::vector<float> host_scores;
};

// A run of the step's rows as rows of another table, with the first of them.
struct Echo {
  RowBatch rows;
  int first = 0;
};
// [seqs, kMaxEcho]: a row holds its own number, the table of every row of a run.
inline std::vector<int32_t> EchoSeqs(int seqs) {
  std::vector<int32_t> out(static_cast<size_t>(seqs) * kMaxEcho);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(i / kMaxEcho);
  return out;
}
// `seqs`: EchoSeqs() in the backend's memory.
inline Echo EchoRows(const RowBatch& rows, const RowEcho& echo, const int32_t* seqs) {
  FS_CHECK(echo.count <= kMaxEcho && echo.seq < rows.num_seqs, "rows are echoed into a table of the step");
  Echo e{rows, echo.first};
  e.rows.num_rows = echo.count;
  e.rows.tokens += echo.first;
  e.rows.positions += echo.first;
  e.rows.row_seq = seqs + static_cast<int64_t>(echo.seq) * kMaxEcho;
  return e;
}

}  // namespace farsight

#endif  // FARSIGHT_MODEL_STEP_ROWS_H_
