"""Run `python -m fidgpt.plot`; see `fidgpt.cli.plot`."""

from fidgpt.cli.plot import __doc__ as __doc__  # which --help shows
from fidgpt.cli.plot import run

if __name__ == "__main__":
    run()
