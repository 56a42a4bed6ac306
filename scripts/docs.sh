#!/usr/bin/env bash
# Build the documentation's site from docs/ into site/, as the tests do: a warning is an error.
#
#     bash scripts/docs.sh
#     bash scripts/docs.sh serve      on a local port, rebuilt while you write
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
export NO_MKDOCS_2_WARNING=1  # the theme's notice about other packages
bash scripts/setup_env.sh
if [[ "${1:-}" == serve ]]; then
    exec .venv/bin/python -m mkdocs serve --strict
fi
.venv/bin/python -m mkdocs build --strict --quiet
echo "built: open $root/site/index.html in a browser"
