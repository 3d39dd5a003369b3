"""Conversations in place of text, or beside it, and how the tokenizer writes them."""

from typing import Any

import fiddle as fdl

from fidgpt.data import (
    ChatTokenizer,
    Conversations,
    Corpus,
    CorpusTokenizer,
    HeldOut,
    HubDataset,
    Mixture,
    TextFiles,
    TokenStream,
    best_fit,
    template_tokens,
)
from fidgpt.fiddlers.attention import use_document_mask
from fidgpt.fiddlers.texts import OWN, add_special_tokens, own_corpus
from fidgpt.graph import ConfigError, find, swapped
from fidgpt.tags import BatchSize, SeqLen
from fidgpt.train import PreferenceStep, Trainer

__all__ = ["use_chat_template", "use_conversations", "use_hub_conversations"]

_CONVERSATIONS = "conversations"  # their name in a mixture


def use_chat_template(cfg: fdl.Config[Trainer], template: str | None = None) -> None:
    """Write conversations by a chat template.

    A trained tokenizer and bytes get the special tokens that it needs.

    Args:
      cfg: the graph to change.
      template: `chatml`, `llama3`, `nanochat`, or a file of Jinja; defaults to the tokenizer's own,
        or to `chatml` where a tokenizer is trained.
    """
    corpus = own_corpus(cfg)
    if fdl.get_callable(corpus.tokenizer) is not ChatTokenizer:
        corpus.tokenizer = fdl.Config(ChatTokenizer, corpus.tokenizer)
    if template is None and "path" not in fdl.ordered_arguments(corpus.tokenizer.tokenizer):
        template = "chatml"
    corpus.tokenizer.template = template
    add_special_tokens(cfg, template_tokens(template))
    if "layout" in fdl.ordered_arguments(cfg.model):
        use_document_mask(cfg)


def use_conversations(
    cfg: fdl.Config[Trainer],
    path: str,
    train_on: str = "assistant",
    too_long: str = "shorten",
    template: str | None = None,
    share: float | None = None,
    broken: str = "refuse",
) -> None:
    """Train on conversations of files: JSON lines, JSON or Parquet, or a folder of them.

    Only what the assistant says counts in the loss. Whole conversations are packed into sequences,
    and do not see each other.

    Args:
      cfg: the graph to change.
      path: the file or folder.
      train_on: what counts: `assistant`, `last` for its last answer, or `all`.
      too_long: what becomes of those longer than a sequence: `shorten`, `drop` or `refuse`.
      template: as in `use_chat_template`.
      share: of the tokens, beside the config's own text; defaults to conversations alone.
      broken: what becomes of rows that hold no conversation, with an empty answer or with roles out
        of order: `refuse` or `drop`.
    """
    options = {"train_on": train_on, "too_long": too_long, "broken": broken}
    _use(cfg, fdl.Config(TextFiles, path), template, share, **options)


def use_hub_conversations(
    cfg: fdl.Config[Trainer],
    path: str,
    name: str | None = None,
    split: str = "train",
    train_on: str = "assistant",
    too_long: str = "shorten",
    template: str | None = None,
    share: float | None = None,
    broken: str = "refuse",
) -> None:
    """Train on conversations of a dataset of the Hugging Face hub, as `use_conversations` does.

    Args:
      cfg: the graph to change.
      path: the dataset, such as HuggingFaceTB/smoltalk.
      name: configuration of the dataset, if it has several.
      split: split of the dataset.
      train_on: as in `use_conversations`.
      too_long: as in `use_conversations`.
      template: as in `use_conversations`.
      share: as in `use_conversations`.
      broken: as in `use_conversations`.
    """
    source = fdl.Config(HubDataset, path, split=split)
    if name is not None:
        source.name = name
    options = {"train_on": train_on, "too_long": too_long, "broken": broken}
    _use(cfg, source, template, share, **options)


def _use(
    cfg: fdl.Config[Trainer], source: Any, template: str | None, share: float | None, **options: str
) -> None:
    if fdl.get_callable(cfg.step) is PreferenceStep:
        raise ConfigError(
            "the run trains on pairs of use_preferences, and conversations hold none: leave out "
            "one of the two, or train on conversations first, and then on pairs from what that "
            "leaves: fiddler:initialize_from(path=RUN_DIRECTORY)."
        )
    source.rows = fdl.Config(Conversations, max_tokens=SeqLen.new(), **options)
    write_chats(cfg, template)
    use_document_mask(cfg)
    own = own_corpus(cfg)
    packing = fdl.Partial(best_fit)
    if share is None:
        own.source = source
        for stream in find(cfg.data, TokenStream):
            stream.packing = packing
        for held_out in find(cfg.evaluators, HeldOut):
            held_out.packing = packing
        return
    if not 0 < share < 1:
        raise ConfigError(f"{share=} must be above 0 and below 1: it is a fraction of the tokens.")
    text = cfg.data.streams[OWN] if fdl.get_callable(cfg.data) is Mixture else cfg.data
    talk = swapped(text, TokenStream)
    talk.corpus = fdl.Config(Corpus, source=source, tokenizer=fdl.Config(CorpusTokenizer, own))
    talk.packing = packing
    cfg.data = fdl.Config(
        Mixture,
        {OWN: text, _CONVERSATIONS: talk},
        batch_size=BatchSize.new(),
        weights={OWN: 1 - share, _CONVERSATIONS: share},
    )


def write_chats(cfg: fdl.Config[Trainer], template: str | None) -> None:
    """Let the tokenizer write conversations, by its own template if it is a file."""
    is_ready = fdl.get_callable(own_corpus(cfg).tokenizer) is ChatTokenizer
    if not is_ready or template is not None:
        use_chat_template(cfg, template)
