#!/usr/bin/env bash
# The steps of action.yml, one argument each: install, validate, gate. They run in any shell:
#
#   install    the tool, from the source tree that this script lies in, into $CONFORMANCE_VENV
#   validate   the project in the working directory; mistakes become annotations
#   gate       `conformance gate $ARGUMENTS`, on the engine $ENGINE; its files: conformance-gate/
#
# Of GitHub it uses GITHUB_OUTPUT, GITHUB_STEP_SUMMARY and GITHUB_ACTIONS where they are set.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
split='import shlex, sys; print(*shlex.split(sys.argv[1]), sep="\n")'
venv=${CONFORMANCE_VENV:-${RUNNER_TEMP:-/tmp}/conformance-tool}

case ${1:?install, validate or gate} in
install)
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$here"
    "$venv/bin/conformance" --version
    ;;
validate)
    "$venv/bin/conformance" validate
    ;;
gate)
    [ -z "${ENGINE:-}" ] || export CONFORMANCE_ENGINE=$ENGINE
    code=0
    # As words of a command line, with its quotes: nothing of it is executed.
    words=$("$venv/bin/python" -c "$split" "${ARGUMENTS:-}")
    arguments=()
    [ -z "$words" ] || mapfile -t arguments <<<"$words"
    "$venv/bin/conformance" gate "${arguments[@]}" --to conformance-gate || code=$?
    "$venv/bin/python" "$here/scripts/annotate.py" conformance-gate/junit.xml || true
    if [ -n "${GITHUB_OUTPUT:-}" ]; then
        run=$(readlink -f reports/latest || true)
        printf 'exit-code=%s\nrun=%s\n' "$code" "$run" >>"$GITHUB_OUTPUT"
    fi
    exit "$code"
    ;;
*)
    echo "action: there is no step '$1'" >&2
    exit 2
    ;;
esac
