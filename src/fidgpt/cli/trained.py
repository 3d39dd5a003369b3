"""A trained model from where it lies: the directory of a run, or one of Hugging Face's."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from fidgpt.cli.app import FLAGS

if TYPE_CHECKING:
    import fiddle as fdl

    from fidgpt.data import Tokenizer
    from fidgpt.model import LanguageModel
    from fidgpt.train import Precision, Trainer
    from fidgpt.train.evaluation import Evaluator


flags.DEFINE_integer("step", None, "Take this checkpoint rather than the newest.")
flags.DEFINE_boolean("averaged", False, "Take the run's average of weights, not its last weights.")


class Trained(NamedTuple):
    """A model with its weights, on the device of its run, and what goes with it.

    Attributes:
      model: as training left it.
      tokenizer: what it reads and writes.
      seq_len: the longest sequence that it is for, in tokens.
      precision: the number format in which its run computes; of no run, one as wide as its file's.
      evaluators: what its run measures, by name; nothing where it is of no run.
      trainer: the other parts of its run, or of one that would train it.
    """

    model: "LanguageModel"
    tokenizer: "Tokenizer"
    seq_len: int
    precision: "Precision"
    evaluators: "Mapping[str, Evaluator]"
    trainer: "Trainer"


def load_trained(path: Path) -> Trained:
    """The model that a directory holds, ready to read and write; of a run, that of --step.

    Raises:
      RunError: there is no run.
      CheckpointError: it has no such checkpoint.
      ConfigError: its config cannot be read, it is no run and a step is asked for, or has no
        average that is asked for.
      DataError: there is no tokenizer that can be read.
    """
    # Late: --help loads no torch.
    from fidgpt.compose.runs import build_trainer
    from fidgpt.data import load_tokenizer
    from fidgpt.interop.hugging_face import load_hf
    from fidgpt.interop.hugging_face.files import is_hub_directory
    from fidgpt.model import materialize

    is_hub = is_hub_directory(path)
    trainer = build_trainer(_of_hub(path) if is_hub else _of_run(path))
    model, tokenizer = trainer.model, load_tokenizer(path / "tokenizer.json")
    materialize(model, device=trainer.parallel.device, seed=0)
    if is_hub:
        load_hf(model, path)
    else:
        _restore(trainer, path)
    precision = _precision_of_hub(path) if is_hub else trainer.precision
    return Trained(
        model.eval(),
        tokenizer,
        trainer.seq_len,
        precision,
        evaluators={} if is_hub else trainer.evaluators,
        trainer=trainer,
    )


def _restore(trainer: "Trainer", path: Path) -> None:
    """Gives a run's model the weights of its checkpoint, or their average."""
    from fidgpt.graph import ConfigError
    from fidgpt.optim.groups import train_only

    restore = partial(
        trainer.checkpoints.restore, path, model=trainer.model, optimizer=None, step=FLAGS.step
    )
    if not FLAGS.averaged:
        restore()
        return
    average = trainer.average
    if average is None:
        raise ConfigError(
            f"--averaged: {path} keeps no average of its weights. Leave the flag out, or let a run "
            "keep one: --config=fiddler:use_ema"
        )
    train_only(trainer.model, trainer.trainable)
    average.begin(trainer.model)
    restore(stateful={"average": average}, warn=lambda line: None)
    if not average.has_history:
        raise ConfigError(
            f"--averaged: this checkpoint of {path} holds no average: take a later one, or leave "
            "the flag out."
        )
    average.exchange(trainer.model)


def _of_run(path: Path) -> "fdl.Config":
    from fidgpt.compose.catalogue import own_catalogue
    from fidgpt.compose.runs import load_run

    return load_run(path, allowed=(*own_catalogue().packages, *FLAGS.allow))


def _of_hub(path: Path) -> "fdl.Config":
    from fidgpt.graph import ConfigError
    from fidgpt.interop.hugging_face import from_hf

    if FLAGS.step is not None:
        raise ConfigError(
            f"--step={FLAGS.step} asks for a checkpoint, and {path} is no run but a model of the "
            "hub, which has none: leave --step out."
        )
    if FLAGS.averaged:
        raise ConfigError(f"--averaged: {path} is no run, and has one set of weights only.")
    return from_hf(str(path))


def _precision_of_hub(path: Path) -> "Precision":
    """One as wide as that of the weights, which config.json names by its newer or its older key.

    Weights in float16 are computed with in bfloat16 as well.
    """
    from fidgpt.interop.hugging_face.settings import read_config
    from fidgpt.train import BFloat16, Float32

    config = read_config(path)
    is_narrow = config.get("dtype", config.get("torch_dtype")) in ("bfloat16", "float16")
    return BFloat16() if is_narrow else Float32()
