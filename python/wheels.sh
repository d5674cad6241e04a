#!/usr/bin/env bash
# Build the wheels of Linux that are published, for x86-64 and aarch64, into `target/wheels`: one library for Python 3.11 and
# later each. zig, which comes as a Python package, links them, so that they run with the C library of 2014 (glibc 2.17) and
# later, and no compiler for aarch64 is needed. `IPUC_PYTHON` names the Python.
set -euo pipefail
cd "$(dirname "$0")"
python=${IPUC_PYTHON:-python3}
target=${CARGO_TARGET_DIR:-$PWD/target}
environment=$target/wheel-environment
[ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
"$environment/bin/pip" install --quiet "maturin==1.16.0" "ziglang==0.17.1"
[ -f Cargo.lock ] || cp ../Cargo.lock Cargo.lock
export PATH="$environment/bin:$PATH"
for machine in ${IPUC_MACHINES:-x86_64 aarch64}; do
  rustup target add "$machine-unknown-linux-gnu"
  maturin build --quiet --release --zig --target "$machine-unknown-linux-gnu" --compatibility manylinux_2_17 \
    --interpreter "$environment/bin/python" --out "$target/wheels"
done
"$environment/bin/python" - "$target"/wheels/ipuc-*.whl <<'CHECK'
# Each wheel has a library for the machine that its name says.
import struct, sys, zipfile

MACHINES = {"x86_64": 62, "aarch64": 183}
for path in sys.argv[1:]:
    with zipfile.ZipFile(path) as wheel:
        [library] = [name for name in wheel.namelist() if name.endswith(".so")]
        header = wheel.read(library)[:20]
        found, = struct.unpack("<H", header[18:20])
    [machine] = [machine for machine in MACHINES if machine in path.rsplit("/", 1)[-1]]
    assert header[:4] == b"\x7fELF" and found == MACHINES[machine], (path, found)
    print(path)
CHECK
