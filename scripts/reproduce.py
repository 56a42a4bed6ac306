"""The paper's two tables beside ours: trains and evaluates their cells, or goes on where it was interrupted.

    python scripts/reproduce.py --tiny                       all cells on generated twins, on a CPU
    python scripts/reproduce.py --table 2 --data_dir data --launch "accelerate launch --config_file FILE" [--dry_run]
    python scripts/reproduce.py --table 3 ...                not the paper's: prompts that come back

docs/reproduce.md says what it takes and what it shows.
"""

from pathlib import Path

from adaroll_trl.reproduction.command import main

if __name__ == "__main__":
    raise SystemExit(main(Path(__file__).resolve().parent.parent))
