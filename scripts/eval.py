"""Accuracy and pass@k of a checkpoint; the same as `adaroll eval`: python scripts/eval.py --model M --task gsm8k"""

from adaroll_trl.evaluation.command import main

if __name__ == "__main__":
    raise SystemExit(main())
