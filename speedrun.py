"""From text to a scored model that answers: `python speedrun.py --depth=2`."""

from fidgpt.cli.speedrun import run

if __name__ == "__main__":
    run()
