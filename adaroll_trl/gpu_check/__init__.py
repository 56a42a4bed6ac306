"""One command that tells whether a machine runs what this library needs: `scripts/gpu_check.sh`.

plan.py      which checks there are, in which processes, and which of them this machine cannot run
runner.py    runs each in a process of its own, with a time limit
worker.py    that process
hardware.py, training.py, side_by_side.py    what is checked
turns.py     trainers that take turns in one process
report.py    the table
"""
