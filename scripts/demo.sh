#!/usr/bin/env bash
# GRPO and AdaRoll-GRPO side by side: a tiny model on this machine's CPU, in a few minutes, with nothing to download.
#
#     bash scripts/demo.sh
#     bash scripts/demo.sh --model <path or id> --dataset <path or id>     the same on a real model and data set
#     bash scripts/demo.sh --help                                          all options
#
# Sets the environment up on the first run (about two minutes). Results go to outputs/demo in the project's folder unless
# --output-dir says otherwise.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
bash "$root/scripts/setup_env.sh"
# matplotlib keeps its list of fonts here, inside the project, rather than in the user's cache.
export MPLCONFIGDIR="${MPLCONFIGDIR:-$root/outputs/.matplotlib}"
exec "$root/.venv/bin/python" -m adaroll_trl demo --output-dir "$root/outputs/demo" "$@"
