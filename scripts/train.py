"""The training script; the same as `adaroll train`: python scripts/train.py --config recipes/<...>.yaml"""

from adaroll_trl.training.run import main

if __name__ == "__main__":
    raise SystemExit(main())
