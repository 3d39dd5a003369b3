"""Let a trained model continue or score texts: `fidgpt sample runs/NAME --prompt="It was"`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from fidgpt.cli import app, sampling
from fidgpt.cli.trained import generation_ends, load_trained, naming, one_directory, to_write
from fidgpt.errors import ConfigError

FLAGS = flags.FLAGS

flags.DEFINE_multi_string(
    "prompt",
    [""],
    "The prompt; empty for the start of a document. Repeatable: texts are generated in one batch.",
)
flags.DEFINE_float("min_p", 0.0, "Minimum probability relative to the likeliest.", 0.0, 1.0)
flags.DEFINE_float("repetition_penalty", 1.0, "Above 1, penalizes tokens already in the text.", 0.0)
flags.DEFINE_multi_string("stop", [], "Stop string; ends the text, not shown. Repeatable.")
flags.DEFINE_multi_string(
    "score", [], "Print the likelihood of this text and generate nothing. Repeatable."
)
app.define_path(
    "draft",
    "A smaller run or hub directory of the same tokenizer that proposes tokens, which the model "
    "checks in one pass (speculative decoding): texts have the same distribution, sooner.",
)
flags.DEFINE_integer("draft_tokens", 4, "Number of tokens that --draft proposes at once.", 1)


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Stream texts to standard output.

    Raises:
      ConfigError: not one directory was named, a prompt cannot be encoded, or the draft has
        another tokenizer.
      RunError: the run has no model that could write, or there is not enough memory.
    """
    # Late: --help loads no torch.
    from fidgpt.model.generation import prepare_to_write
    from fidgpt.train.device import within_memory

    path = one_directory(arguments, "sample")
    if FLAGS.score and FLAGS.draft:
        raise ConfigError("--draft has no effect with --score; remove one.")
    app.refuse_unused({("draft",): ["draft_tokens"]})
    with within_memory(remedy="Generate fewer tokens, or fewer texts at once."), naming(path):
        trainer, tokenizer = load_trained(path)
        model, context = trainer.model, trainer.seq_len
        if not FLAGS.score:  # scores are what one compares
            model = to_write(trainer, float32=FLAGS.float32)
        prepare_to_write(model)
        draft = _draft(path, tokenizer) if FLAGS.draft else None
        if FLAGS.score:
            pieces = (_scored(model, tokenizer, text, context) for text in FLAGS.score)
        else:
            pieces = _written(model, tokenizer, context, draft, generation_ends(path))
        for piece in pieces:
            print(piece, end="", flush=True)
    if draft is not None and draft.num_proposed:
        print(
            f"{draft.num_accepted} of {draft.num_proposed} tokens that {FLAGS.draft} proposed were "
            f"accepted ({draft.num_accepted / draft.num_proposed:.0%}).",
            file=sys.stderr,
        )


def _draft(path: Any, tokenizer: Any) -> Any:
    """Return the model that --draft names, ready to propose tokens to the model of `path`."""
    from fidgpt.model.generation import Draft, prepare_to_write

    trainer, other = load_trained(Path(FLAGS.draft), has_flags=False)

    def tokens(tokenizer: Any) -> Any:
        return tokenizer.token_values(), tokenizer.special_ids(), tokenizer.end_of_text

    if tokens(other) != tokens(tokenizer):
        raise ConfigError(
            f"--draft={FLAGS.draft} has another tokenizer than {path}: name a model that was "
            "trained with the same one."
        )
    model = to_write(trainer, float32=FLAGS.float32)
    prepare_to_write(model)
    return Draft(model, context=trainer.seq_len, num_tokens=FLAGS.draft_tokens)


def _written(model: Any, tokenizer: Any, context: int, draft: Any, ends: set[int]) -> Iterator[str]:
    """Yield the first text as it is written, then the others, which are written beside it."""
    from fidgpt import train
    from fidgpt.model.generation import Sampling

    first, *others = prompts = FLAGS.prompt
    chosen = sampling.chosen(num_tokens=200, temperature=0.6, top_k=50, top_p=1.0)
    choose = Sampling(
        seeds=[train.derive_seed(FLAGS.seed, "sample", row) for row in range(len(prompts))],
        temperature=chosen["temperature"],
        top_k=chosen["top_k"] or None,
        top_p=None if chosen["top_p"] == 1.0 else chosen["top_p"],
        min_p=FLAGS.min_p or None,
        repetition_penalty=None if FLAGS.repetition_penalty == 1.0 else FLAGS.repetition_penalty,
        vocab_size=tokenizer.vocab_size,
    )
    yield first
    for piece, *rest in train.continuations(
        model,
        tokenizer,
        prompts,
        context=context,
        num_tokens=chosen["num_tokens"],
        choose=choose,
        stop=FLAGS.stop,
        ends=ends,
        draft=draft,
    ):
        yield piece
        others = [text + more for text, more in zip(others, rest, strict=True)]
    yield "\n"
    for number, text in enumerate(others, start=2):
        yield f"\n-- {number} of {len(prompts)} --\n{text}\n"


def _scored(model: Any, tokenizer: Any, text: str, context: int) -> str:
    """Return a line for each token with its log-probability, then one for the whole text."""
    from fidgpt.model.generation import score
    from fidgpt.train import document_begin

    ids = document_begin(tokenizer, text)
    scored = score(model, ids, context=context)
    num_bytes = len(text.encode())
    each = zip(scored.log_probabilities.tolist(), ids[1:], strict=True)
    values = tokenizer.token_values()
    lines = [f"{nats:9.4f}  {values[token].decode(errors='replace')!r}\n" for nats, token in each]
    return "".join(lines) + (
        f"{len(ids) - 1} tokens, {num_bytes} bytes: perplexity {scored.perplexity:.4g}, "
        f"{scored.nats / (len(ids) - 1):.4f} nats per token, "
        f"{scored.bits_per_byte(num_bytes):.4f} bits per byte\n"
    )
