"""What a run left on disk, as one HTML page: `adaroll report`. Needs the extra `plots` (matplotlib and Jinja2).

    files (the run's folder) -> completions (its batches, one file at a time) -> figures, tables -> page (HTML)

Nothing here imports torch or TRL: a report is made on any machine that has the run's folder.
"""
