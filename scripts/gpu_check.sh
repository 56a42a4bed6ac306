#!/usr/bin/env bash
# Check in at most 10 minutes that this machine trains with adaroll_trl: CUDA, bfloat16, attention, GRPO and AdaRoll with
# full fine-tuning and LoRA, vLLM, NCCL over all GPUs. Prints one table; exits non-zero if a check fails.
#
#     bash scripts/gpu_check.sh                              with a tiny random model, offline
#     bash scripts/gpu_check.sh --model DIR --output gpu.md  with a model of yours; the table also goes to a file
#     bash scripts/gpu_check.sh --device cpu                 a dry run: what a CPU cannot do is skipped
#     bash scripts/gpu_check.sh --help                       all options
#
# Installs nothing. Uses PYTHON, else .venv, else python3; what it should check must be installed there.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-}"
if [[ -z "$python" ]]; then
    python=python3
    [[ ! -x "$root/.venv/bin/python" ]] || python="$root/.venv/bin/python"
fi
exec "$python" -m adaroll_trl.gpu_check "$@"
