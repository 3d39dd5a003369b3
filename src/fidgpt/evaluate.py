"""Run `python -m fidgpt.evaluate`; see `fidgpt.cli.evaluate`."""

from fidgpt.cli.evaluate import run

if __name__ == "__main__":
    run()
