"""Run `python -m fidgpt.chat`; see `fidgpt.cli.chat`."""

from fidgpt.cli.chat import __doc__ as __doc__  # which --help shows
from fidgpt.cli.chat import run

if __name__ == "__main__":
    run()
