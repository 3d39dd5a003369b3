"""Run `python -m fidgpt.sample`; see `fidgpt.cli.sample`."""

from fidgpt.cli.sample import run

if __name__ == "__main__":
    run()
