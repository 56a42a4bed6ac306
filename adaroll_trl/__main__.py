"""`python -m adaroll_trl` is the `adaroll` command."""

import sys

from .cli import main

sys.exit(main())
