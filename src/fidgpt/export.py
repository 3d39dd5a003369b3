"""Run `python -m fidgpt.export`; see `fidgpt.cli.export`."""

from fidgpt.cli.export import run

if __name__ == "__main__":
    run()
