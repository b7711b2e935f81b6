#include "engine/step_batch.h"

#include <algorithm>

namespace farsight {
namespace {

void AddTable(const SequenceCache& cache, int max_blocks, Batch* batch) {
  const auto width = static_cast<size_t>(max_blocks);
  const auto blocks = cache.blocks();
  batch->block_tables.resize(static_cast<size_t>(batch->num_seqs + 1) * width, -1);
  std::copy(blocks.begin(), blocks.end(),
            batch->block_tables.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(batch->num_seqs) * width));
  ++batch->num_seqs;
}

}  // namespace

void AddRows(const PlannedRows& rows, int max_blocks, Batch* batch) {
  const int first_row = batch->num_rows();
  const int first_seq = batch->num_seqs;
  const Sequence& s = *rows.sequence;
  for (int i = 0; i < rows.count; ++i) {
    batch->tokens.push_back(rows.Token(i));
    batch->positions.push_back(static_cast<int32_t>(rows.Position(i)));
    batch->row_seq.push_back(first_seq + (rows.drafts() ? s.paths.table[static_cast<size_t>(i)] : 0));
  }
  AddTable(s.cache, max_blocks, batch);
  for (size_t path = 1; path <= s.forks.size(); ++path) {
    AddTable(s.forks[path - 1], max_blocks, batch);
    // What the path has in common with an earlier one, in runs of neighbouring rows.
    int end = -1;
    for (const int32_t row : s.paths.rows[path]) {
      if (s.paths.table[static_cast<size_t>(row)] == static_cast<int32_t>(path)) break;
      if (row != end) batch->echoes.push_back({first_row + row, 0, first_seq + static_cast<int>(path)});
      ++batch->echoes.back().count;
      end = row + 1;
    }
  }
}

void Approximate(const VerifyMode& mode, std::span<const int32_t> depths, const AttentionPlan& plan, Batch* batch) {
  if (mode.reuses_lists() && mode.refresh.size() == plan.sources.size()) {
    batch->refresh = mode.refresh;
    const auto first = std::find_if(plan.sources.begin(), plan.sources.end(),
                                    [](ListSource source) { return source != ListSource::kAll; });
    // Nobody chose before the first layer that can.
    if (first != plan.sources.end()) batch->refresh[static_cast<size_t>(first - plan.sources.begin())] = 1;
  }
  if (!mode.shared_list) return;
  const auto first_row = static_cast<int32_t>(batch->list_sources.size());
  const auto rows = static_cast<int>(depths.size());
  for (int begin = 0; begin < rows; begin += mode.group) {
    const int end = std::min(rows, begin + mode.group);
    // The deepest row sees most of what is near.
    const auto deepest = std::max_element(depths.begin() + begin, depths.begin() + end) - depths.begin();
    for (int i = begin; i < end; ++i) batch->list_sources.push_back(first_row + static_cast<int32_t>(deepest));
  }
}

}  // namespace farsight
