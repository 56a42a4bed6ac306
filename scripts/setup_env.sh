#!/usr/bin/env bash
# Create the project's environment in .venv: torch, then this package with its dev extra, at the tested versions.
#
#     bash scripts/setup_env.sh
#
# A second run finds the stamp of the first and installs nothing, until pyproject.toml or constraints.txt changes.
# Needs Python 3.11 or later (the tested versions do); PYTHON=python3.12 picks another interpreter. Writes nothing outside the project.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
python="${PYTHON:-python3}"
torch_version=2.13.0
venv=.venv
stamp="$venv/.adaroll-setup"
wanted="$(echo "torch==$torch_version" | cat - pyproject.toml scripts/constraints.txt | sha256sum | cut -d' ' -f1)"

if [[ -x "$venv/bin/python" && "$(cat "$stamp" 2>/dev/null)" == "$wanted" ]]; then
    echo "set-up: $venv is up to date, nothing to install"
    exit 0
fi

started=$SECONDS
if [[ ! -x "$venv/bin/python" ]]; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "error: $("$python" --version 2>&1) is too old: Python 3.11 or later is needed (PYTHON=... picks one)" >&2
        exit 1
    }
    echo "set-up: creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi

export PYTHONWARNINGS=ignore  # of the build backend, which pip would pass on
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)
# torch first and pinned: a bare `torch` may resolve to a build for another device, several gigabytes larger.
echo "set-up: installing torch $torch_version"
"${pip[@]}" "torch==$torch_version"
echo "set-up: installing adaroll_trl with its dev extra"
"${pip[@]}" --constraint scripts/constraints.txt --editable ".[dev]"
echo "$wanted" > "$stamp"
echo "set-up: done in $((SECONDS - started)) s"
