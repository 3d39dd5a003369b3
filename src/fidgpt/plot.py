"""Run `python -m fidgpt.plot`; see `fidgpt.cli.plot`."""

from fidgpt.cli.plot import run

if __name__ == "__main__":
    run()
