#!/usr/bin/env bash
# Set up the environment, lint, check types, run the tests. Extra arguments go to pytest:
#
#     bash scripts/test.sh                    everything
#     bash scripts/test.sh -m "not slow" -x   a part of the tests
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
# One thread a process: the models of the tests are tiny, and threads that fight over the cores cost more than they bring.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" TOKENIZERS_PARALLELISM=false

step() {
    local name="$1" started=$SECONDS
    shift
    echo "== $name: $*"
    "$@"
    echo "== $name: passed in $((SECONDS - started)) s"
}

step "set-up" bash scripts/setup_env.sh
export PATH="$root/.venv/bin:$PATH"
step "lint" ruff check .
step "format" ruff format --check .
step "types" mypy
# Two tests at a time; the tests of one file stay together, since they share models and tables.
step "tests" python -m pytest --numprocesses 2 --dist loadfile "$@"
echo "== all steps passed in $SECONDS s"
