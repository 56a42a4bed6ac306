"""Accuracy and pass@k of a checkpoint with intervals, and paired comparisons: `adaroll eval`."""
