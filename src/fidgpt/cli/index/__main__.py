"""Builds the index: `python -m fidgpt.cli.index` writes it to its place and to standard output."""

import json
import os
import sys

from fidgpt.cli.index.build import build_index
from fidgpt.cli.index.store import BEHIND, end_rebuild, write

if __name__ == "__main__":
    if BEHIND in sys.argv[1:]:
        os.nice(10)  # who types comes first
        write(build_index())
        end_rebuild()
    else:
        index = build_index()
        write(index)
        json.dump(index, sys.stdout)
