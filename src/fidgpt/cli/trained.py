"""A trained model from the directory of a run, or from one of Hugging Face."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from fidgpt.cli.app import FLAGS
from fidgpt.errors import ConfigError, is_user_error
from fidgpt.files import read_json

if TYPE_CHECKING:
    from fidgpt.data import Tokenizer
    from fidgpt.model import LanguageModel
    from fidgpt.train import Trainer

GENERATION = "generation_config.json"  # beside the weights of a model of the hub

flags.DEFINE_integer("step", None, "Use this checkpoint rather than the newest.")
flags.DEFINE_boolean("averaged", False, "Use the run's averaged weights, not its last weights.")


def one_directory(arguments: list[str], command: str) -> Path:
    """Return the only argument of a command, a directory.

    Raises:
      ConfigError: there is not one argument.
    """
    if len(arguments) == 1:
        return Path(arguments[0])
    raise ConfigError(f"name one directory, of a run or of the hub: fidgpt.{command} runs/NAME")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the directory of a model that refuses what it is used for.

    Raises:
      RunError: it raises a ValueError of no kind.
    """
    from fidgpt.train import RunError

    try:
        yield
    except ValueError as error:
        if is_user_error(error):
            raise
        raise RunError(f"{path} cannot be used: {error}") from error


def load_trained(path: Path, *, has_flags: bool = True) -> "tuple[Trainer, Tokenizer]":
    """Return a trainer whose model has the weights of a directory, and its tokenizer.

    Of a run, it is the run's trainer, and --step chooses the weights. Of a model of the hub, it is
    one that would train the model, without evaluators, in a number format as wide as the weights.

    Args:
      path: the directory.
      has_flags: whether --step and --averaged are about this directory.

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
    from fidgpt.interop.hugging_face.files import is_hub_directory
    from fidgpt.interop.hugging_face.settings import read_config
    from fidgpt.runs.building import build_trainer, require_consent
    from fidgpt.runs.directories import load_run

    step, averaged = (FLAGS.step, FLAGS.averaged) if has_flags else (None, False)
    if is_hub_directory(path):
        if step is not None or averaged:
            flag = "--averaged" if step is None else f"--step={step}"
            raise ConfigError(
                f"{flag}: {path} is a model of the hub, which has one set of weights, and not a "
                "run: remove the flag."
            )
        trainer, settings = build_trainer(interop.from_hf(str(path))), read_config(path)
        dtype = settings.get("dtype", settings.get("torch_dtype"))
        # Weights in float16 are computed with in bfloat16 as well.
        is_narrow = dtype in ("bfloat16", "float16")
        trainer.precision = train.BFloat16() if is_narrow else train.Float32()
        trainer.evaluators, restore = {}, interop.load_hf
    else:
        allowed = (*own_catalogue().packages, *FLAGS.allow)
        cfg = load_run(path, allowed=allowed)
        require_consent(cfg, words=[], is_loaded=True, sends=False)
        trainer = build_trainer(cfg)
        restore = functools.partial(_restore, trainer, step, averaged)
    tokenizer = data.load_tokenizer(path / "tokenizer.json")
    model.materialize(trainer.model, device=trainer.parallel.device, seed=0)
    restore(trainer.model, path)
    trainer.model.eval()
    return trainer, tokenizer


def to_write(trainer: "Trainer", *, float32: bool = False) -> "LanguageModel":
    """Return a trainer's model in the number format in which it generates.

    Args:
      trainer: with weights.
      float32: whatever the run's precision.
    """
    from fidgpt.train import native_precision

    if float32:
        return trainer.model
    # A token takes as long as reading all weights: of narrow ones, the machine's fastest.
    is_narrow = trainer.precision.dtype.itemsize < 4
    return (native_precision() if is_narrow else trainer.precision).replica(trainer.model)


def generation_ends(path: Path) -> set[int]:
    """Return the tokens that end a text by the generation_config.json of a model of the hub."""
    given: Any = read_json(path / GENERATION).get("eos_token_id")
    ends = given if isinstance(given, list) else [given]
    return {end for end in ends if end is not None}


def _restore(
    trainer: "Trainer", step: int | None, averaged: bool, model: "LanguageModel", path: Path
) -> None:
    """Give a run's model the weights of its checkpoint, or their average."""
    from fidgpt.optim.groups import train_only

    restore = functools.partial(
        trainer.checkpoints.restore, path, model=model, optimizer=None, step=step
    )
    if not averaged:
        restore()
        return
    average = trainer.average
    if average is not None:
        train_only(model, trainer.trainable)
        average.begin(model)
        restore(stateful={"average": average}, warn=lambda line: None)
    if average is None or not average.has_history:
        raise ConfigError(
            f"--averaged: {path} keeps no average of its weights in this checkpoint. Remove the "
            "flag, or let a run keep one: --config=fiddler:use_ema"
        )
    average.exchange(model)
