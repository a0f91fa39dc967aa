#!/bin/sh
# Has Python compile, and keep, what every worker imports, once for each .venv: from the sources
# an engine's imports take three times as long. Python keeps it whatever this shell was told.
set -eu
cd "$(dirname "$0")/.."
stamp=.venv/first-start
if [ -f "$stamp" ]; then
    exit 0
fi
printf "environment: starting the engines' imports for the first time\n" >&2
export PYTHONDONTWRITEBYTECODE=
for module in conformance.engines.vllm.preload conformance.engines.preload_hf; do
    # What cannot be imported is for `make doctor` to say.
    .venv/bin/python -c "import $module" >/dev/null 2>&1 &
done
wait
touch "$stamp"
