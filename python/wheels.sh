#!/usr/bin/env bash
# Build the wheels that are published, for Linux on x86-64 and aarch64, into python/target/wheels (or the first argument). Both are
# built on one machine: zig, which is a package of Python, links for the other. A target whose standard library is not
# installed is left out, by name; STRICT=1 makes that an error.
set -euo pipefail
cd "$(dirname "$0")"
python=${IPUC_PYTHON:-python3}
target=${CARGO_TARGET_DIR:-$PWD/target}
wheels=${1:-$target/wheels}
environment=$target/wheel-environment
[ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
"$environment/bin/pip" install --quiet "maturin==1.16.0" "ziglang==0.16.0"
[ -f Cargo.lock ] || cp ../Cargo.lock Cargo.lock
PATH=$environment/bin:$PATH
missing=()
for triple in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
  if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ]; then
    echo "left out: $triple (rustup target add $triple)"
    missing+=("$triple")
    continue
  fi
  # manylinux 2.28: glibc 2.28 and later.
  maturin build --quiet --release --strip --target "$triple" --zig --compatibility manylinux_2_28 --out "$wheels"
done
ls -l "$wheels"/ipuc-*.whl
[ -z "${STRICT:-}" ] || [ "${#missing[@]}" = 0 ]
