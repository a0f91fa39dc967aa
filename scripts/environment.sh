#!/bin/sh
# Builds .venv, or leaves it alone when it is up to date.
#
#   scripts/environment.sh        EXTRAS (default cpu,dev): extras of pyproject.toml, cpu or gpu
#                                 PYTHON: the interpreter to build on (default: one that fits)
#   scripts/environment.sh lock   renew environments/cpu.txt, the versions the tests run with
#
# uv does the work and is itself installed from PyPI, into .uv, where there is none. The torch
# for the CPU is taken from the folder that PIP_FIND_LINKS (or pip's own configuration) names,
# where it lies there, and else from where PyTorch publishes it.
set -eu
cd "$(dirname "$0")/.."
# pip trusts the certificates of the machine; uv brings its own, and fails behind a proxy whose
# certificate only the machine knows.
export UV_SYSTEM_CERTS=true
EXTRAS=${EXTRAS:-cpu,dev}
LOCK=environments/cpu.txt

say() { printf 'environment: %s\n' "$*" >&2; }
die() {
    say "$1"
    printf '  → %s\n' "$2" >&2
    exit 2
}

# What the environment is made from, and with which extras.
made_from() {
    cat pyproject.toml "$LOCK" scripts/environment.sh | cksum
    printf '%s %s\n' "$EXTRAS" "${PYTHON:-}"
}

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# The folders with wheels that pip would look into.
find_links() {
    if [ -n "${PIP_FIND_LINKS:-}" ]; then
        # shellcheck disable=SC2086 # several folders, with spaces between them
        printf '%s\n' $PIP_FIND_LINKS
    else
        for name in python3 python3.11 python3.12; do
            "$name" -m pip config get global.find-links 2>/dev/null && return
        done
    fi
}

# The CPU torch in those folders: prints its Python as 3.11.
torch_python() {
    for folder in $links; do
        for wheel in "${folder#file://}"/torch-*+cpu-cp3*.whl; do
            [ -f "$wheel" ] || continue
            version=${wheel##*+cpu-cp3}
            printf '3.%s\n' "${version%%-*}"
        done
    done
}

choose_python() {
    if [ -n "${PYTHON:-}" ]; then
        recent "$PYTHON" || die "$PYTHON is no Python 3.11 or later" "set PYTHON to one that is"
        printf '%s\n' "$PYTHON"
        return
    fi
    wanted=$1
    for version in ${wanted:-3.11 3.12 3.13}; do
        recent "python$version" && printf '%s\n' "python$version" && return
    done
    if [ -z "$wanted" ] && recent python3; then
        printf 'python3\n'
        return
    fi
    die "no Python ${wanted:-3.11 or later} found" "install it, or set PYTHON to where it is"
}

# A uv that knows --torch-backend.
choose_uv() {
    for candidate in uv .uv/bin/uv; do
        if "$candidate" pip install --help 2>/dev/null | grep -q -- --torch-backend; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    say "installing uv into .uv"
    rm -rf .uv
    "$1" -m venv .uv >&2 || die "cannot make a virtual environment" "apt-get install python3-venv"
    .uv/bin/python -m pip install --quiet --disable-pip-version-check uv >&2 ||
        die "cannot install uv from PyPI" "install uv by hand, then try again"
    printf '.uv/bin/uv\n'
}

mode=${1:-build}
stamp=.venv/made-from
if [ "$mode" = build ] && [ -x .venv/bin/python ] && [ -f "$stamp" ] && [ "$(made_from)" = "$(cat "$stamp")" ]; then
    exit 0
fi

links=$(find_links || true)
wheel_python=
set --
case ",$EXTRAS," in
*,gpu,*) set -- --torch-backend=auto ;;
*)
    wheel_python=$(torch_python)
    [ -n "$wheel_python" ] || set -- --torch-backend=cpu
    ;;
esac
for folder in $links; do
    set -- "$@" --find-links "$folder"
done
python=$(choose_python "$wheel_python")
uv=$(choose_uv "$python")

if [ "$mode" = lock ]; then
    exec "$uv" pip compile pyproject.toml --quiet --python "$python" --upgrade \
        --extra cpu --extra dev --no-annotate --no-emit-package pip \
        --custom-compile-command "scripts/environment.sh lock" -o "$LOCK" "$@"
fi

case ",$EXTRAS," in
*,cpu,*) set -- "$@" --constraint "$LOCK" ;;
esac
say "building .venv with $("$python" --version 2>&1) and the extras $EXTRAS"
"$uv" venv --quiet --clear --no-python-downloads --python "$python" .venv
"$uv" pip install --quiet --python .venv/bin/python "$@" --editable ".[$EXTRAS]" ||
    die "the packages could not be installed" \
        "see above; an index of your own: UV_DEFAULT_INDEX, wheels in a folder: PIP_FIND_LINKS"
made_from >"$stamp"
say "done: .venv/bin/conformance --help"
