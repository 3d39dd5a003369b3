"""How long, how fast and on what a model learns."""

import fiddle as fdl

from fidgpt.data import ByteTokenizer, HeldOut, HubDataset, TextFiles
from fidgpt.fiddlers.texts import own_corpus
from fidgpt.graph import find, swap_all, tagged
from fidgpt.graph.structure.arguments import assign
from fidgpt.tags import LearningRate
from fidgpt.train import Float32, Samples, Trainer


def smoke_test(cfg: fdl.Config[Trainer], num_steps: int = 5) -> None:
    """A few steps on short sequences: everything is touched, nothing is learned."""
    cfg.num_steps = num_steps
    cfg.batch_size = 2
    cfg.seq_len = 32
    for held_out in find(cfg.evaluators, HeldOut):
        held_out.num_batches = 1
    for samples in find(cfg, Samples):
        samples.num_tokens = 16


def scale_learning_rate(cfg: fdl.Config[Trainer], factor: float = 0.5) -> None:
    """Every learning rate times a factor."""
    for part, key in tagged(cfg, LearningRate):
        given = fdl.ordered_arguments(part)
        if key in given:
            assign(part, key, given[key] * factor)


def use_float32(cfg: fdl.Config[Trainer]) -> None:
    """Everything is computed in float32, whatever the machine could do."""
    cfg.precision = fdl.Config(Float32)


def use_bytes(cfg: fdl.Config[Trainer]) -> None:
    """Tokens are bytes: no tokenizer is trained."""
    swap_all(cfg, fdl.get_callable(own_corpus(cfg).tokenizer), by=ByteTokenizer)
    cfg.vocab_size = 257 + len(own_corpus(cfg).tokenizer.special_tokens)


def use_text(cfg: fdl.Config[Trainer], path: str, text_field: str = "text") -> None:
    """Learns from files of your own: text, JSON lines, Parquet, or a folder of them."""
    own_corpus(cfg).source = fdl.Config(TextFiles, path, text_field=text_field)


def use_hub_text(
    cfg: fdl.Config[Trainer],
    path: str,
    name: str | None = None,
    split: str = "train",
    text_field: str = "text",
) -> None:
    """Learns from a dataset of Hugging Face's hub, which is streamed.

    Args:
      cfg: the graph to change.
      path: the dataset, such as HuggingFaceFW/fineweb-edu.
      name: of the configuration, where the dataset has several.
      split: of the dataset.
      text_field: the column that holds the text.
    """
    source = fdl.Config(HubDataset, path, split=split, text_field=text_field)
    if name is not None:
        source.name = name
    own_corpus(cfg).source = source
