"""GRPO and AdaRoll-GRPO side by side, from one checkpoint and with the same number of rollouts: `adaroll demo`."""
