#!/usr/bin/env bash
# Build the package for this machine, install it into a virtual environment beside the build, and test it.
# `IPUC_PYTHON` names the Python (3.11 or later); PROFILE=release builds what would be published.
set -euo pipefail
cd "$(dirname "$0")"
python=${IPUC_PYTHON:-python3}
target=${CARGO_TARGET_DIR:-$PWD/target}
environment=$target/python-environment
[ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
"$environment/bin/pip" install --quiet "maturin==1.16.0" "numpy==2.4.6" "onnx==1.23.2" "ml_dtypes==0.6.0" "pytest==9.2.0"
# (ONNX's own suite of cases needs pytest.) The versions of the workspace, where both have a package.
[ -f Cargo.lock ] || cp ../Cargo.lock Cargo.lock
"$environment/bin/maturin" build --quiet --profile "${PROFILE:-dev}" --interpreter "$environment/bin/python" --out "$target/wheels"
"$environment/bin/pip" install --quiet --force-reinstall --no-deps "$target"/wheels/ipuc-*.whl
"$environment/bin/python" -P -m unittest discover --start-directory tests --top-level-directory tests
