#!/bin/sh
# make release-check URL=https://host/pylog: builds wheel and sdist, checks them, and tries each in a bare environment.
# The links of the README become links to the repository at URL, at the tag of the version.
set -eu
python=$1
url=${2:?the URL of the repository is missing: make release-check URL=https://host/pylog}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet build twine
rm -rf dist
git archive --prefix=pylog/ HEAD | tar -x -C "$work"
version=$(sed -n 's/^version = //p' setup.cfg)
"$python" deploy/absolute_links.py "$work/pylog/README.md" "$url" "v$version"
"$work/tools/bin/python" -m build --outdir dist "$work/pylog"
"$work/tools/bin/twine" check --strict dist/*
for file in dist/*; do
    rm -rf "$work/bare"
    "$python" -m venv "$work/bare"
    "$work/bare/bin/pip" install --quiet "$file"
    root=$(mktemp -d -p "$work")
    (cd "$work" && bare/bin/pylog topic create orders -u "$root/log" && bare/bin/pylog verify -u "$root/log")
done
