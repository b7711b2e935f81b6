// Random draft trees.
#ifndef FARSIGHT_SPEC_TESTING_RANDOM_TREE_H_
#define FARSIGHT_SPEC_TESTING_RANDOM_TREE_H_

#include <cstdint>
#include <random>
#include <set>
#include <utility>

#include "spec/token_tree.h"

namespace farsight::testing {

// A tree of `nodes` nodes, root included, with tokens below `vocab`. Siblings differ in their tokens. `bushiness` 0
// gives a chain; 1 gives a parent that is uniform over all earlier nodes.
inline TokenTree RandomTree(std::mt19937& rng, int nodes, int32_t vocab, double bushiness) {
  TokenTree tree;
  std::set<std::pair<int, int32_t>> used;
  std::uniform_int_distribution<int32_t> token(0, vocab - 1);
  tree.Add(-1, token(rng));
  while (tree.size() < nodes) {
    const bool branch = std::uniform_real_distribution<double>(0, 1)(rng) < bushiness;
    const int parent = branch ? std::uniform_int_distribution<int>(0, tree.size() - 1)(rng) : tree.size() - 1;
    const int32_t t = token(rng);
    if (used.emplace(parent, t).second) tree.Add(parent, t);
  }
  return tree;
}

}  // namespace farsight::testing

#endif  // FARSIGHT_SPEC_TESTING_RANDOM_TREE_H_
