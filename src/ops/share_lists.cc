#include "ops/share_lists.h"

#include <algorithm>

#include "base/check.h"

namespace farsight {

void ShareListsOnHost(const ShareListsParams& p) {
  for (int t = 0; t < p.rows.num_rows; ++t) {
    const int source = p.sources[t];
    FS_CHECK(source >= 0 && source < p.rows.num_rows && p.sources[source] == source, "a list comes from one row");
    if (source == t) continue;
    const int own = p.rows.positions[t] / p.block_tokens;
    for (int h = 0; h < p.num_kv_heads; ++h) {
      const int64_t from = int64_t{source} * p.num_kv_heads + h;
      const int64_t to = int64_t{t} * p.num_kv_heads + h;
      if (p.counts[to] < 0) continue;
      if (p.counts[from] < 0) {
        p.counts[to] = -1;
        continue;
      }
      // What is forced first, then from the source what still fits; both ascend, and a merge keeps it so.
      int32_t* ids = p.ids + to * p.top_k;
      const int32_t* list = p.ids + from * p.top_k;
      int n = 0;
      for (int b = own; b >= std::max(0, own - p.local_blocks) && n < p.top_k; --b) ids[n++] = b;
      for (int b = 0; b < std::min(p.init_blocks, own - p.local_blocks) && n < p.top_k; ++b) ids[n++] = b;
      const int forced = n;
      for (int i = 0; i < p.counts[from] && n < p.top_k; ++i) {
        if (list[i] <= own && std::find(ids, ids + forced, list[i]) == ids + forced) ids[n++] = list[i];
      }
      std::sort(ids, ids + n);
      p.counts[to] = n;
    }
  }
}

}  // namespace farsight
