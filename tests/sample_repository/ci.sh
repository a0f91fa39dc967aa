#!/usr/bin/env bash
# What a CI of this repository runs: the steps of the action, then its own tests and cells by pytest.
# TOOL: the source tree of conformance; PYTEST: a pytest whose interpreter has conformance and torch.
set -euo pipefail
cd "$(dirname "$0")"
"$TOOL/scripts/action.sh" install
"$TOOL/scripts/action.sh" validate
ARGUMENTS=${ARGUMENTS:--m sample-tiny -b hf -k halve --precision float32} \
    "$TOOL/scripts/action.sh" gate
"$PYTEST" -q checks.py --conformance-backend hf --conformance-model sample-tiny \
    --conformance-cells 'halve and first' --conformance-precision float32
