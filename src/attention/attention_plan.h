// Which layers attend to everything and which select, and by what constants: the policy as data. The forward reads it.
#ifndef FARSIGHT_ATTENTION_ATTENTION_PLAN_H_
#define FARSIGHT_ATTENTION_ATTENTION_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "farsight/options.h"
#include "ops/params.h"

namespace farsight {

// Where a layer's block list comes from.
enum class ListSource : uint8_t {
  kAll,          // every visible block
  kOwnQuery,     // the layer's own query over the key summaries of the same layer; NSA's compressed branch is one
  kInputBefore,  // the layer's query weights on the attention input of the layer before
  kListBefore,   // what the layer before chose by its own query
  kForecast,     // a projection of the layer before (of layer 0 itself for the first) over this layer's key summaries
};

struct AttentionPlan {
  AttentionOptions options;         // resolved: policy is never kModel
  std::vector<ListSource> sources;  // [layers]
  SummaryView summary;              // kind and constants; pages are the runner's
  int top_k = 0;                    // blocks a list holds at most
  int query_top_k = 0;              // of these, what the query chooses; 0: all
  int init_blocks = 0;
  int local_blocks = 0;

  bool Forecasts() const { return !sources.empty() && sources.back() == ListSource::kForecast; }
  bool Selects() const { return summary.kind != SummaryKind::kNone; }
  // Does a cache that was filled under this plan hold the summaries that `other` needs?
  bool SharesSummaries(const AttentionPlan& other) const;
  // Does a row select (in the layers that do), or attend to everything?
  bool RowSelects(int64_t position, bool is_decode) const {
    return Selects() && (is_decode || options.phase == SparsePhase::kAll) && position + 1 >= options.dense_below;
  }
};

// `trained` is what the model was trained with; see AttentionOptions for how the two are merged. NSA models refuse
// every other policy, NOSA models those that have no use for importances, and other models refuse both. `forecast`:
// what the Forecast projections were trained over (kind and constants), where there are any; kSparda uses them and
// others do not.
StatusOr<AttentionPlan> MakeAttentionPlan(const AttentionOptions& asked, const AttentionOptions& trained, int layers,
                                          const std::optional<SummaryView>& forecast = std::nullopt);

}  // namespace farsight

#endif  // FARSIGHT_ATTENTION_ATTENTION_PLAN_H_
