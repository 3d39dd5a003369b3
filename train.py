"""Train a model: `python train.py --config=config:base`."""

from fidgpt.cli.train import run

if __name__ == "__main__":
    run()
