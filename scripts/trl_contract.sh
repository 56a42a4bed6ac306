#!/usr/bin/env bash
# Run the contract tests against several versions of TRL, each in an environment of its own, and print one table.
#
#     bash scripts/trl_contract.sh                       TRL 1.8.0, 1.12.0, 1.14.0 and 1.16.0
#     bash scripts/trl_contract.sh 1.10.0 1.16.0         these versions
#     bash scripts/trl_contract.sh --keep --dir ~/envs   keep the environments, and reuse them next time
#
# An environment takes about 1.5 GB and a minute or two. By default it lies in a temporary folder and is removed when
# its tests are over. All other packages have the versions of scripts/constraints.txt, so TRL is all that changes.
# Exits non-zero if a version could not be installed or a test failed in it. PYTHON=python3.12 picks an interpreter.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"
dir="${TMPDIR:-/tmp}/adaroll-trl-contract"
torch_version=2.13.0
keep=false
versions=()
while [[ $# -gt 0 ]]; do
    case "$1" in
        --keep) keep=true ;;
        --dir) dir="${2:?--dir needs a folder}"; shift ;;
        -h | --help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        -*) echo "error: unknown option $1 (--keep, --dir DIR, or TRL versions)" >&2; exit 2 ;;
        *) versions+=("$1") ;;
    esac
    shift
done
[[ ${#versions[@]} -gt 0 ]] || versions=(1.8.0 1.12.0 1.14.0 1.16.0)
mkdir -p "$dir"
dir="$(cd "$dir" && pwd)"

# The package's own requirements, but TRL: the versions' environments have what a user's would have.
requirements() {
    "$1" - "$root/pyproject.toml" <<'PYTHON'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    dependencies = tomllib.load(file)["project"]["dependencies"]
print("\n".join(d for d in dependencies if not d.startswith("trl")))
PYTHON
}

install() {
    local version="$1" env="$2"
    local pip=("$env/bin/python" -m pip --disable-pip-version-check install --quiet)
    [[ "$(cat "$env/.ready" 2>/dev/null)" != "$version" ]] || return 0
    "$python" -m venv --clear "$env"
    "${pip[@]}" "torch==$torch_version"
    grep -v '^trl==' "$root/scripts/constraints.txt" > "$env/constraints.txt"
    requirements "$env/bin/python" > "$env/requirements.txt"
    # TRL 1.8 to 1.14 import requests without asking for it: an older huggingface_hub brought it. Tools in TRL 1.8
    # need jmespath.
    "${pip[@]}" --constraint "$env/constraints.txt" "trl==$version" -r "$env/requirements.txt" pytest pytest-timeout \
        requests jmespath
    echo "$version" > "$env/.ready"
}

# One line: the versions in use, how many tests passed, and how long they took.
summary() {
    "$1" - "$2" <<'PYTHON'
import importlib.metadata as metadata, sys, xml.etree.ElementTree as ET
suite = ET.parse(sys.argv[1]).getroot().find("testsuite")
count = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
bad = count["failures"] + count["errors"]
versions = [metadata.version(name) for name in ("trl", "transformers", "accelerate", "torch")]
passed = count["tests"] - bad - count["skipped"]
cells = [*versions, passed, bad, count["skipped"], f"{float(suite.get('time')):.0f} s", "ok" if not bad else "FAILED"]
print("| " + " | ".join(map(str, cells)) + " |")
PYTHON
}

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
rows=()
failed=0
for version in "${versions[@]}"; do
    env="$dir/trl-$version"
    started=$SECONDS
    echo "== TRL $version: installing"
    # Not `if ! install`: bash would then go on after a step that failed.
    code=0
    (set -e; install "$version" "$env") & wait $! || code=$?
    if [[ $code -ne 0 ]]; then
        rows+=("| $version |  |  |  |  |  |  |  | NOT INSTALLED |")
        failed=1
        continue
    fi
    echo "== TRL $version: installed in $((SECONDS - started)) s, testing"
    code=0
    (cd "$root" && "$env/bin/python" -m pytest -p no:cacheprovider -m contract --junitxml "$env/result.xml" \
        tests/test_contract.py) || code=$?
    [[ $code -eq 0 ]] || failed=1
    rows+=("$(summary "$env/bin/python" "$env/result.xml")")
    $keep || rm -rf "$env"
done

echo
echo "| TRL | transformers | accelerate | torch | passed | failed | skipped | time | result |"
echo "|---|---|---|---|---|---|---|---|---|"
printf '%s\n' "${rows[@]}"
exit $failed
