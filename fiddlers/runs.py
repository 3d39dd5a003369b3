"""Length of a run, precision, text and tokenizer."""

from typing import Any

import fiddle as fdl

from fidgpt.cost import count_parameters
from fidgpt.data import ByteTokenizer, HeldOut, HubDataset, RemoteFiles, TextFiles
from fidgpt.fiddlers.data import count_growth
from fidgpt.fiddlers.texts import own_corpus, set_source
from fidgpt.graph import ConfigError, bind, build, find, swap_all
from fidgpt.graph.edits import change_by
from fidgpt.optim import steps_for_tokens, tokens_for_parameters
from fidgpt.ranges import require_positive
from fidgpt.tags import BatchSize, LearningRate, SeqLen, TokensPerParameter
from fidgpt.train import Float32, Samples, Trainer

__all__ = [
    "scale_learning_rate",
    "smoke_test",
    "train_for",
    "use_bytes",
    "use_float32",
    "use_hub_text",
    "use_text",
]


def smoke_test(cfg: fdl.Config[Trainer], num_steps: int = 5) -> None:
    """Run a few steps on short sequences, to check that everything works."""
    cfg.num_steps = num_steps
    cfg.batch_size = 2
    cfg.seq_len = 32
    for held_out in find(cfg.evaluators, HeldOut):
        held_out.num_batches = 1
    for samples in find(cfg, Samples):
        samples.num_tokens = 16


def train_for(
    cfg: fdl.Config[Trainer], tokens: int | None = None, tokens_per_parameter: float | None = None
) -> None:
    """Train for a number of tokens, which determines the number of steps.

    Batches that `grow_batch` makes smaller count as what they hold.

    Args:
      cfg: the graph to change.
      tokens: tokens of the whole run; defaults to 100 million.
      tokens_per_parameter: replaces `tokens`; about 20 is compute-optimal (Hoffmann et al., 2022,
        arXiv:2203.15556). Counts all parameters that a token uses: embeddings, which nanochat's
        ratio excludes, and the active experts of a mixture. The current model is counted, on the
        meta device, so set its size first; `tag:TokensPerParameter` means the same.
    """
    if tokens is not None and tokens_per_parameter is not None:
        raise ConfigError(f"{tokens=} and {tokens_per_parameter=} cannot both be set; remove one.")
    whole: Any = 100_000_000 if tokens is None else tokens
    if tokens_per_parameter is not None:
        require_positive(tokens_per_parameter=tokens_per_parameter)
        whole = fdl.Config(
            tokens_for_parameters,
            parameters=count_parameters(build(bind(cfg).model)).active,
            tokens_per_parameter=TokensPerParameter.new(tokens_per_parameter),
        )
    cfg.num_steps = fdl.Config(
        steps_for_tokens, tokens=whole, batch_size=BatchSize.new(), seq_len=SeqLen.new()
    )
    count_growth(cfg)


def scale_learning_rate(cfg: fdl.Config[Trainer], factor: float = 0.5) -> None:
    """Multiply every learning rate by a factor."""
    require_positive(factor=factor)
    change_by(cfg, LearningRate, "*", repr(factor))


def use_float32(cfg: fdl.Config[Trainer]) -> None:
    """Compute in float32."""
    cfg.precision = fdl.Config(Float32)


def use_bytes(cfg: fdl.Config[Trainer]) -> None:
    """Use bytes as tokens, without training a tokenizer."""
    swap_all(cfg, fdl.get_callable(own_corpus(cfg).tokenizer), by=ByteTokenizer)
    cfg.vocab_size = 257 + len(own_corpus(cfg).tokenizer.special_tokens)


def use_text(cfg: fdl.Config[Trainer], path: str, text_field: str = "text") -> None:
    """Train on files: text, JSON lines, Parquet, or a folder of them, here or in an object store.

    Args:
      cfg: the graph to change.
      path: the file or folder, such as s3://bucket/folder or gs://bucket/folder.
      text_field: field of the text in JSON lines and tables.
    """
    store = path.partition("://")[0] if "://" in path else "http"
    kind = TextFiles if store.startswith("http") else RemoteFiles
    set_source(cfg, fdl.Config(kind, path, text_field=text_field))


# Datasets by short names, with a configuration where there are several.
_KNOWN_TEXTS: dict[str, tuple[str, str | None]] = {
    "climbmix": ("karpathy/climbmix-400b-shuffle", None),
    "dclm": ("mlfoundations/dclm-baseline-1.0", None),
    "fineweb-edu": ("HuggingFaceFW/fineweb-edu", "sample-10BT"),
    "tinystories": ("roneneldan/TinyStories", None),
}


def use_hub_text(
    cfg: fdl.Config[Trainer],
    path: str,
    name: str | None = None,
    split: str = "train",
    text_field: str = "text",
) -> None:
    """Train on a dataset of the Hugging Face hub, which is streamed.

    Args:
      cfg: the graph to change.
      path: the dataset, such as HuggingFaceFW/fineweb-edu, or one of `climbmix`, `dclm`,
        `fineweb-edu` and `tinystories`.
      name: configuration of the dataset, if it has several.
      split: split of the dataset.
      text_field: column of the text.
    """
    path, usual = _KNOWN_TEXTS.get(path, (path, None))
    name = usual if name is None else name
    source = fdl.Config(HubDataset, path, split=split, text_field=text_field)
    if name is not None:
        source.name = name
    set_source(cfg, source)
