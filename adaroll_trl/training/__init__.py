"""The training command: `adaroll train`, `python -m adaroll_trl train` and `scripts/train.py`."""
