#!/usr/bin/env bash
# Run every ```sh block of README.md, in order, in a copy of nothing but this checkout's files; tests run elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk '/^```sh$/ {block = 1; next} /^```$/ {block = 0} block' README.md | grep -v '^cargo test' > "$folder/examples.sh"
[ -s "$folder/examples.sh" ] || { echo "README.md has no examples"; exit 1; }
TMPDIR="$folder" bash -euxo pipefail "$folder/examples.sh"
