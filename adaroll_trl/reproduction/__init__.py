"""The paper's two tables, run from the recipes and set beside its figures: `scripts/reproduce.py`."""
