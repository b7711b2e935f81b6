#!/bin/sh
# Runs pieces of an evaluation side by side, one thread each: lines "NAME ARGUMENTS OF farsight eval" on standard input,
# OUT/NAME.json as soon as a piece is done. A piece that is there is not run again, so a run may be stopped at any time.
#
#   quality_pieces.sh OUT PROCESSES <PLAN        FARSIGHT: the program
set -eu
[ $# = 2 ] || { echo "usage: quality_pieces.sh OUT PROCESSES <PLAN" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
export FARSIGHT="${FARSIGHT:-$here/build/release/bin/farsight}" OUT="$1"
run='name=$1; shift
[ -s "$OUT/$name.json" ] && exit 0
if "$FARSIGHT" eval "$@" -t 1 -o json >"$OUT/$name.part" 2>"$OUT/$name.log"; then
  mv "$OUT/$name.part" "$OUT/$name.json"; rm -f "$OUT/$name.log"
else
  echo "$name: $(tail -n 1 "$OUT/$name.log")" >&2
fi'
exec xargs -P "$2" -L 1 sh -c "$run" run
