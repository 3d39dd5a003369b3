"""Answers a shell: `python -m fidgpt.cli.complete SHELL LINE` prints what may follow the line."""

import sys

from fidgpt.cli.completion.line import read_line
from fidgpt.cli.completion.shells import written
from fidgpt.cli.completion.words import (
    candidates,
    command_of,
    folder_of_script,
    needs_knobs,
    said,
)
from fidgpt.cli.index.ask import for_completion


def main(arguments: list[str]) -> None:
    """Prints one candidate a line, as the script of the shell reads them."""
    shell, text, *breaks = arguments
    line = read_line(text)
    if command_of(line.words):
        sys.path[:0] = folder_of_script(line.words)
        index = for_completion(
            with_knobs=needs_knobs(line),
            directives=list(said("config", line.words)),
            allowed=list(said("allow", line.words)),
        )
        found = candidates(line, index)
        for one in written(shell, line.current, found, *breaks):
            print(one)


if __name__ == "__main__":
    main(sys.argv[1:])
