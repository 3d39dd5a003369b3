"""Run `python -m fidgpt.chat`; see `fidgpt.cli.chat`."""

from fidgpt.cli.chat import run

if __name__ == "__main__":
    run()
