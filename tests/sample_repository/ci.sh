#!/usr/bin/env bash
# What a CI of this repository runs: the steps of the action, then its own tests and cells by pytest.
# TOOL: the source tree of conformance; PYTEST: a pytest whose interpreter has conformance and torch.
set -euo pipefail
cd "$(dirname "$0")"
"$TOOL/scripts/action.sh" install
"$TOOL/scripts/action.sh" validate
ARGUMENTS="-m sample-tiny -b hf -b vllm-pp2 -k 'halve or middle_pair' --precision float32" \
    "$TOOL/scripts/action.sh" gate
"$PYTEST" -q checks.py --conformance-backend vllm-pp2 --conformance-model sample-tiny \
    --conformance-cells 'halve and first or middle_pair' --conformance-precision float32
