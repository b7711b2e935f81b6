// Block lists at second hand, for backends whose lists lie in host memory.
#ifndef FARSIGHT_OPS_SHARE_LISTS_H_
#define FARSIGHT_OPS_SHARE_LISTS_H_

#include "ops/params.h"

namespace farsight {

void ShareListsOnHost(const ShareListsParams& p);

}  // namespace farsight

#endif  // FARSIGHT_OPS_SHARE_LISTS_H_
