#!/usr/bin/env bash
# Run every ```sh block of README.md, in order; tests run elsewhere. The argument is the profile: `release`, as the README
# says, or `dev`, which uses what tests have built.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${1:-release}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
awk '/^```sh$/ {block = 1; next} /^```$/ {block = 0} block' README.md | grep -v '^cargo test' > "$folder/examples.sh"
[ -s "$folder/examples.sh" ] || { echo "README.md has no examples"; exit 1; }
case $profile in
  release) ;;
  dev)
    built='${CARGO_TARGET_DIR:-target}/debug'
    sed -i -E -e "s#^cargo run --release --example ([a-z_]+)#$built/examples/\1#" -e 's#^cargo build --release#:#' \
      -e "s#target/release/#$built/#" "$folder/examples.sh" ;;
  *) echo "usage: $0 [release|dev]"; exit 2 ;;
esac
TMPDIR="$folder" bash -euxo pipefail "$folder/examples.sh"
