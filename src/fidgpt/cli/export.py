"""The command `python -m fidgpt.export RUN DIRECTORY`: a run's model for transformers."""

from pathlib import Path

from absl import flags

from fidgpt.cli import app
from fidgpt.cli.trained import load_trained, writing

FLAGS = flags.FLAGS

flags.DEFINE_float("shard_gb", 5.0, "Maximum size of a weights file in gigabytes.", 0.001)
flags.DEFINE_string(
    "model_type",
    None,
    "Family of the model in transformers, such as phi3, where several compute the same.",
)


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Write config.json, the weights and the tokenizer.

    Raises:
      ConfigError: not a run and a directory were named, or no family of the hub computes what the
        model does.
      RunError: there is no run, or the directory cannot be written.
    """
    # Late: --help loads no torch.
    from safetensors import SafetensorError

    from fidgpt.graph import ConfigError
    from fidgpt.interop import save_hf

    if len(arguments) != 2:
        raise ConfigError("name a run and a directory: python -m fidgpt.export runs/NAME DIRECTORY")
    path, directory = map(Path, arguments)
    trainer, tokenizer = load_trained(path)
    with writing(directory):
        try:
            architecture = save_hf(
                trainer.model,
                directory,
                seq_len=trainer.seq_len,
                tokenizer=tokenizer,
                max_shard_size=int(FLAGS.shard_gb * 1e9),
                model_type=FLAGS.model_type,
            )
        except SafetensorError as error:
            raise OSError(str(error)) from error
    print(f"{directory} holds a {architecture} of transformers.")
