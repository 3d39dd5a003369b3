"""Trains the model that --config describes: `python train.py --config=config:base`."""

from fidgpt.cli.train import run

if __name__ == "__main__":
    run()
