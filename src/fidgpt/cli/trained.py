"""A trained model from a directory: that of a run, or one of Hugging Face's."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from fidgpt.cli.app import FLAGS

if TYPE_CHECKING:
    from fidgpt import data, model, train
    from fidgpt.train import evaluation


flags.DEFINE_integer("step", None, "Use this checkpoint rather than the newest.")
flags.DEFINE_boolean("averaged", False, "Use the run's averaged weights, not its last weights.")


class Trained(NamedTuple):
    """A model with its weights, on the device of its run, and what belongs to it.

    Attributes:
      path: the directory.
      model: as training left it.
      tokenizer: what it reads and writes.
      precision: the number format of its run; of no run, one as wide as that of its weights.
      evaluators: those of its run, by name; none if it is of no run.
      trainer: its run's trainer, or one that would train it.
    """

    path: Path
    model: "model.LanguageModel"
    tokenizer: "data.Tokenizer"
    precision: "train.Precision"
    evaluators: "Mapping[str, evaluation.Evaluator]"
    trainer: "train.Trainer"


def one_directory(arguments: list[str], command: str) -> Path:
    """Return the only argument of a command, a directory.

    Raises:
      ConfigError: there is not one argument.
    """
    if len(arguments) == 1:
        return Path(arguments[0])
    from fidgpt.graph import ConfigError

    raise ConfigError(f"name one directory, of a run or of the hub: fidgpt.{command} runs/NAME")


@contextlib.contextmanager
def writing(path: object) -> Iterator[None]:
    """Report what cannot be written.

    Raises:
      RunError: a file could not be written.
    """
    try:
        yield
    except OSError as error:
        from fidgpt.train import RunError

        raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error


def load_trained(path: Path) -> Trained:
    """Return the model in a directory, ready to read and write; of a run, that of --step.

    Raises:
      RunError: there is no run.
      CheckpointError: it has no such checkpoint.
      ConfigError: its config cannot be read, it is no run and a step is asked for, or has no
        average that is asked for.
      DataError: there is no tokenizer that can be read.
    """
    # Late: --help loads no torch.
    from fidgpt import data, interop, model, train
    from fidgpt.compose.catalogue import own_catalogue
    from fidgpt.compose.runs import build_trainer
    from fidgpt.compose.sources import load_run
    from fidgpt.graph import ConfigError
    from fidgpt.interop.hugging_face.files import is_hub_directory
    from fidgpt.interop.hugging_face.settings import read_config

    if not is_hub_directory(path):
        allowed = (*own_catalogue().packages, *FLAGS.allow)
        trainer = build_trainer(load_run(path, allowed=allowed))
        precision, evaluators = trainer.precision, trainer.evaluators
    elif FLAGS.step is not None or FLAGS.averaged:
        flag = "--averaged" if FLAGS.step is None else f"--step={FLAGS.step}"
        raise ConfigError(
            f"{flag}: {path} is a model of the hub, which has one set of weights, and not a run: "
            "remove the flag."
        )
    else:
        trainer, evaluators = build_trainer(interop.from_hf(str(path))), {}
        settings = read_config(path)
        dtype = settings.get("dtype", settings.get("torch_dtype"))
        # Weights in float16 are computed with in bfloat16 as well.
        is_narrow = dtype in ("bfloat16", "float16")
        precision = train.BFloat16() if is_narrow else train.Float32()
    tokenizer = data.load_tokenizer(path / "tokenizer.json")
    model.materialize(trainer.model, device=trainer.parallel.device, seed=0)
    if is_hub_directory(path):
        interop.load_hf(trainer.model, path)
    else:
        _restore(trainer, path)
    return Trained(path, trainer.model.eval(), tokenizer, precision, evaluators, trainer)


def _restore(trainer: "train.Trainer", path: Path) -> None:
    """Give a run's model the weights of its checkpoint, or their average."""
    from fidgpt.graph import ConfigError
    from fidgpt.optim.groups import train_only

    restore = functools.partial(
        trainer.checkpoints.restore, path, model=trainer.model, optimizer=None, step=FLAGS.step
    )
    if not FLAGS.averaged:
        restore()
        return
    average = trainer.average
    if average is None:
        raise ConfigError(
            f"--averaged: {path} keeps no average of its weights. Remove the flag, or let a run "
            "keep one: --config=fiddler:use_ema"
        )
    train_only(trainer.model, trainer.trainable)
    average.begin(trainer.model)
    restore(stateful={"average": average}, warn=lambda line: None)
    if not average.has_history:
        raise ConfigError(
            f"--averaged: this checkpoint of {path} holds no average: use a later one, or remove "
            "the flag out."
        )
    average.exchange(trainer.model)
