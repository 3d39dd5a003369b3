"""The command `python -m fidgpt.sample RUN`: a trained model goes on with a prompt."""

import itertools
from pathlib import Path

from absl import flags

from fidgpt.cli import app

FLAGS = flags.FLAGS

flags.DEFINE_string("prompt", "", "The beginning of the text; empty for that of a document.")
flags.DEFINE_integer("num_tokens", 200, "How many tokens to write.", lower_bound=1)
flags.DEFINE_float("temperature", 0.6, "0 writes the likeliest; 1 as the model believes.", 0.0)
flags.DEFINE_integer("top_k", 50, "Draw among so many of the likeliest tokens; 0 among all.", 0)
flags.DEFINE_integer("seed", 0, "Another seed draws another text.")
flags.DEFINE_integer("step", None, "Take this checkpoint rather than the newest.")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Streams text to standard output.

    Raises:
      ConfigError: not one run directory was named, or the prompt is no text.
      RunError: the run has no model that could write.
    """
    # Late: --help loads no torch.
    import torch

    from fidgpt.cli.catalogue import own_catalogue
    from fidgpt.cli.runs import build_trainer, load_run
    from fidgpt.data import load_tokenizer
    from fidgpt.graph import ConfigError
    from fidgpt.model import materialize
    from fidgpt.train import RunError, continuation, derive_seed

    if len(arguments) != 1:
        raise ConfigError("name one run directory: python -m fidgpt.sample runs/NAME")
    if any("\ud800" <= character <= "\udfff" for character in FLAGS.prompt):
        raise ConfigError("--prompt is not UTF-8 text.")
    path = Path(arguments[0])
    trainer = build_trainer(load_run(path, allowed=(*own_catalogue().packages, *FLAGS.allow)))
    model, device = trainer.model, trainer.parallel.device
    materialize(model, device=device, seed=0)
    trainer.checkpoints.restore(path, model=model, optimizer=None, step=FLAGS.step)
    model.eval()
    tokenizer = load_tokenizer(path / "tokenizer.json")
    try:
        pieces = continuation(
            model,
            tokenizer,
            FLAGS.prompt,
            context=trainer.seq_len,
            num_tokens=FLAGS.num_tokens,
            temperature=FLAGS.temperature,
            top_k=FLAGS.top_k or None,
            generator=torch.Generator().manual_seed(derive_seed(FLAGS.seed, "sample")),
        )
        for piece in itertools.chain([FLAGS.prompt], pieces):
            print(piece, end="", flush=True)
    except ValueError as error:
        raise RunError(f"{path} cannot write: {error}") from error
    print()


if __name__ == "__main__":
    run()
