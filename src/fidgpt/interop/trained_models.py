"""Trained models in configs: to go on from, and as teachers."""

from pathlib import Path

import fiddle as fdl

from fidgpt import configs
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.data import TokenizerFile
from fidgpt.fiddlers import use_document_mask
from fidgpt.graph import bind, clone
from fidgpt.graph.fiddle import raw_arguments
from fidgpt.interop.hugging_face.files import is_hub_directory
from fidgpt.interop.hugging_face.hub import from_hf
from fidgpt.runs.directories import load_run
from fidgpt.train import DistillationStep, Trainer, initial_weights

# Of a trained model: what it computes, and what its parameters are trained by.
_KEPT = ("vocab_size", "seq_len", "seed", "model", "optimizer", "groups", "loss", "trainable")
_HUB_RATE = 2e-5  # common for all weights of a model of the hub


def chat(base: str, learning_rate: float | None = None) -> fdl.Config[Trainer]:
    """The model of a run, or of a Hugging Face directory, with its weights and tokenizer.

    The rest is as in `config:base`; `use_conversations` or `use_preferences` names the text.

    Args:
      base: directory of the run or of the model.
      learning_rate: at the peak; defaults to a tenth of the run's, or to 2e-5.

    Raises:
      RunError: there is no run.
      ConfigError: the model cannot be read.
    """
    path = Path(base).expanduser()
    if is_hub_directory(path):
        cfg = from_hf(str(path))
        cfg.optimizer.lr = learning_rate or _HUB_RATE
        return cfg
    run, cfg = load_run(path, allowed=own_catalogue().packages), configs.base()
    for name in _KEPT:
        if name in raw_arguments(run):
            setattr(cfg, name, getattr(run, name))
    if learning_rate is not None or isinstance(cfg.optimizer.lr, float):
        cfg.optimizer.lr = learning_rate or cfg.optimizer.lr / 10
    path = path.resolve()
    cfg.weights = fdl.Partial(initial_weights, path=str(path))
    cfg.data.corpus.tokenizer = fdl.Config(TokenizerFile, path=str(path / "tokenizer.json"))
    if "layout" in raw_arguments(cfg.model):
        use_document_mask(cfg)
    return cfg


def use_distillation(
    cfg: fdl.Config[Trainer],
    teacher: str,
    ratio: float = 0.5,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> None:
    """Train on the predictions of a larger model with the same tokenizer.

    Args:
      cfg: the graph to change.
      teacher: directory of a run or of a Hugging Face model; or a named config, such as
        `config:llama3_8b`, whose weights `step.weights` has to load.
      ratio: weight of the teacher beside the text itself, from 0 to 1.
      temperature: of both models in the teacher's part of the loss.
      top_k: only the teacher's likeliest tokens count; defaults to all.
    """
    kind, _, name = teacher.partition(":")
    theirs = getattr(configs, name)() if kind == "config" else chat(teacher)
    cfg.step = fdl.Config(
        DistillationStep,
        teacher=clone(bind(theirs).model),  # with sizes of its own
        weights=theirs.weights,
        ratio=ratio,
        temperature=temperature,
        top_k=top_k,
        tokenizer=None if kind == "config" else theirs.data.corpus.tokenizer,
    )
