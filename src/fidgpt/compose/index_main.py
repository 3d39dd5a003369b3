"""Build the index: `python -m fidgpt.compose.index_main` writes it to its place and to stdout.

With a directive, and packages that are allowed, it is that of the one config that this begins.
"""

import json
import os
import sys

from fidgpt.compose.catalogue import user_errors
from fidgpt.compose.index import BACKGROUND, end_rebuild, keep, write
from fidgpt.compose.index_build import build_chosen, build_index


def main(arguments: list[str]) -> None:
    """Writes what is asked for."""
    if BACKGROUND in arguments:
        os.nice(10)  # who types comes first
        write(build_index())
        end_rebuild()
        return
    if arguments:
        directive, *allowed = arguments
        index = build_chosen(directive, allowed)
        keep(index, directive, allowed)
    else:
        index = build_index()
        write(index)
    json.dump(index, sys.stdout)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except user_errors() as error:
        sys.exit(f"error: {error}")
