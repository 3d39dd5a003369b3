"""Run `python -m fidgpt.sweep`; see `fidgpt.cli.report`."""

from fidgpt.cli.report import run

if __name__ == "__main__":
    run()
