#!/bin/sh
# What a release needs, without making one.
#
#   scripts/release.sh site     docs/ → .site/, with mkdocs; a warning is an error. SITE_MAY_LACK: so
#                               that it is none where mkdocs cannot be fetched
#   scripts/release.sh check    the tree is clean, the commit has a tag, CHANGELOG.md tells of it, the
#                               wheel is built twice and holds the same bytes, its metadata is right, it
#                               does in an empty folder what it should (FROM_WHEEL=--no-engine: the
#                               quick part), and the site builds
#
# Without a tag `check` says so, does the rest, and ends with 1.
set -eu
cd "$(dirname "$0")/.."
export UV_SYSTEM_CERTS=true NO_MKDOCS_2_WARNING=1
uv=$(command -v uv || echo .uv/bin/uv)

mkdocs() {
    "$uv" run --quiet --no-project --with-requirements environments/site.txt mkdocs "$@"
}

site() {
    if ! mkdocs --version >/dev/null; then
        echo "site: not built: mkdocs cannot be fetched" >&2
        [ -n "${SITE_MAY_LACK:-}" ] # a CI without an index says nothing of the pages
        return
    fi
    mkdocs build --strict --quiet || return
    echo "site: .site/index.html"
}

status=0
complain() {
    printf 'release: %s\n  → %s\n' "$1" "$2" >&2
    status=1
}

build() {
    # Times in an archive are those of the commit: the same commit, the same bytes.
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) "$uv" build --quiet --wheel --out-dir "$1"
}

check() {
    [ -z "$(git status --porcelain)" ] || complain "the tree has changes" "commit them"
    tag=$(git describe --tags --exact-match --match 'v*' 2>/dev/null || true)
    if [ -z "$tag" ]; then
        complain "this commit has no tag" "git tag -a v0.2.0, when all else is right"
    elif ! grep -q "^## ${tag#v} - " CHANGELOG.md; then
        complain "CHANGELOG.md has no entry for ${tag#v}" "give Unreleased that name and a date"
    fi
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    build "$folder/one"
    build "$folder/two"
    one=$(sha256sum "$folder"/one/*.whl | cut -d' ' -f1)
    two=$(sha256sum "$folder"/two/*.whl | cut -d' ' -f1)
    [ "$one" = "$two" ] || complain "two builds differ: $one, $two" "look for times or paths in it"
    "$uv" tool run --quiet twine check --strict "$folder"/one/*.whl >&2 ||
        complain "the metadata is not right" "see above"
    mkdir -p dist && rm -f dist/*.whl && cp "$folder"/one/*.whl dist/
    wc -c dist/*.whl
    # shellcheck disable=SC2086 # words of its own
    .venv/bin/python scripts/from_wheel.py --wheel dist/*.whl ${FROM_WHEEL:-} ||
        complain "the wheel does not do what it should" "see above"
    site || complain "the site has warnings" "see above"
    echo "sha256 $one"
    return "$status"
}

"${1:?site or check}"
