#!/bin/sh
# Installs what is missing, builds and runs every test.
set -eu
cd "$(dirname "$0")/.."
sh scripts/packages.sh
cmake --preset release -DFARSIGHT_TESTS=ON >/dev/null
cmake --build --preset release
ctest --preset release
python3 scripts/check_tree.py
