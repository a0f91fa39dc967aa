#!/bin/sh
# Has Python compile, and keep, what workers, commands and tests import, once for each .venv: from
# the sources imports take three times as long. Python keeps it whatever this shell was told.
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
# The modules of the package import what commands use; pandas and pyarrow are imported when needed.
.venv/bin/python - <<'EOF' >/dev/null 2>&1 &
import contextlib, importlib, pkgutil

names = ["pandas", "pyarrow.parquet", "xdist.plugin", "_pytest.assertion.rewrite", "hypothesis"]
import conformance

names += [each.name for each in pkgutil.walk_packages(conformance.__path__, "conformance.")]
for name in names:
    if not name.endswith("__main__"):
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
EOF
wait
touch "$stamp"
