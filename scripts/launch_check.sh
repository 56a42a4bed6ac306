#!/usr/bin/env bash
# All four launches of tests/test_launch.py: `accelerate launch` with two processes under DDP, ZeRO-2, ZeRO-3 and FSDP2,
# on CPUs. Extra arguments go to pytest.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
bash scripts/setup_env.sh
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 ADAROLL_ALL_LAUNCHES=1
exec .venv/bin/python -m pytest tests/test_launch.py -v --capture=no --timeout 2400 "$@"
