"""The paper's two tables, and one of ours, run from the recipes: `scripts/reproduce.py`."""
