"""Answers a shell: `python -m fidgpt.cli.complete SHELL LINE` prints what may follow the line."""

import sys

from fidgpt.cli.completion.line import read_line
from fidgpt.cli.completion.shells import written
from fidgpt.cli.completion.words import candidates, command_of, needs_knobs
from fidgpt.cli.index.ask import for_completion


def main(arguments: list[str]) -> None:
    """Prints one candidate a line, as the script of the shell reads them."""
    shell, text, *breaks = arguments
    line = read_line(text)
    if command_of(line.words):
        found = candidates(line, for_completion(with_knobs=needs_knobs(line)))
        for one in written(shell, line.current, found, *breaks):
            print(one)


if __name__ == "__main__":
    main(sys.argv[1:])
