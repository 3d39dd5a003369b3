"""Train variants of one config: `python sweep.py --sweep=tag:LearningRate=1e-3,3e-3`."""

from fidgpt.cli.sweep import run

if __name__ == "__main__":
    run()
