#!/bin/sh
# make release-check: builds wheel and sdist, checks them, and tries each in a bare environment.
set -eu
python=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet build twine
rm -rf dist
"$work/tools/bin/python" -m build --outdir dist .
"$work/tools/bin/twine" check --strict dist/*
for file in dist/*; do
    rm -rf "$work/bare"
    "$python" -m venv "$work/bare"
    "$work/bare/bin/pip" install --quiet "$file"
    root=$(mktemp -d -p "$work")
    (cd "$work" && bare/bin/pylog topic create orders -u "$root/log" && bare/bin/pylog verify -u "$root/log")
done
