"""Run `python -m fidgpt`; see `fidgpt.cli.commands`."""

from fidgpt.cli.commands import run

if __name__ == "__main__":
    run()
