"""The command `python -m fidgpt.sample RUN`: a trained model writes, or scores texts."""

import sys
from collections.abc import Iterator
from typing import Any

from absl import flags

from fidgpt.cli import app
from fidgpt.cli.trained import load_trained, one_directory
from fidgpt.compose.messages import curly_quotes

FLAGS = flags.FLAGS

flags.DEFINE_multi_string(
    "prompt",
    [""],
    "The prompt; empty for the start of a document. Repeatable: texts are generated in one batch.",
)
flags.DEFINE_integer("num_tokens", 200, "Number of tokens to generate.", lower_bound=1)
flags.DEFINE_float("temperature", 0.6, "0 is greedy; 1 is the model's distribution.", 0.0)
flags.DEFINE_integer("top_k", 50, "Sample from this many of the likeliest tokens; 0 for all.", 0)
flags.DEFINE_float("top_p", 1.0, "Sample from the smallest set this likely together.", 0.0, 1.0)
flags.DEFINE_float("min_p", 0.0, "Minimum probability relative to the likeliest.", 0.0, 1.0)
flags.DEFINE_float("repetition_penalty", 1.0, "Above 1, penalizes tokens already in the text.", 0.0)
flags.DEFINE_multi_string("stop", [], "Stop string; ends the text, not shown. Repeatable.")
flags.DEFINE_multi_string(
    "score", [], "Print the likelihood of this text and generate nothing. Repeatable."
)
flags.DEFINE_integer("seed", 0, "Seed of the sampling.")
flags.DEFINE_boolean("float32", False, "Generate in float32 whatever the run's precision.")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Stream texts to standard output.

    Raises:
      ConfigError: not one directory was named, or a prompt cannot be encoded.
      RunError: the run has no model that could write, or there is not enough memory.
    """
    # Late: --help loads no torch.
    from fidgpt import train
    from fidgpt.graph import ConfigError
    from fidgpt.graph.values import is_in_curly_quotes
    from fidgpt.model.generation import prepare_to_write
    from fidgpt.train.device import within_memory

    path = one_directory(arguments, "sample")
    for name in ("prompt", "stop", "score"):
        if any("\ud800" <= character <= "\udfff" for character in "".join(FLAGS[name].value or ())):
            raise ConfigError(f"--{name} is not UTF-8 text.")
    for text in FLAGS.prompt:
        if is_in_curly_quotes(text):
            print(
                f"warning: --prompt={text} has these quotes in its text. {curly_quotes([text])}",
                file=sys.stderr,
            )
    if not all(FLAGS.stop):
        raise ConfigError("--stop: an empty string ends every text: give at least one character.")
    if not all(FLAGS.score):
        raise ConfigError("--score is an empty text: there is nothing to score.")
    with within_memory(remedy="Generate fewer tokens, or fewer texts at once."):
        trainer, tokenizer = load_trained(path)
        model, precision, context = trainer.model, trainer.precision, trainer.seq_len
        if not (FLAGS.float32 or FLAGS.score):  # scores are what one compares
            # A token takes as long as reading all weights: of narrow ones, the machine's fastest.
            is_narrow = precision.dtype.itemsize < 4
            model = (train.native_precision() if is_narrow else precision).replica(model)
        prepare_to_write(model)
        try:
            if FLAGS.score:
                pieces = (_scored(model, tokenizer, text, context) for text in FLAGS.score)
            else:
                pieces = _written(model, tokenizer, context)
            for piece in pieces:
                print(piece, end="", flush=True)
        except ValueError as error:
            raise train.RunError(f"{path} cannot write: {error}") from error


def _written(model: Any, tokenizer: Any, context: int) -> Iterator[str]:
    """Yield the first text as it is written, then the others, which are written beside it."""
    from fidgpt import train
    from fidgpt.model.generation import Sampling

    first, *others = prompts = FLAGS.prompt
    choose = Sampling(
        seeds=[train.derive_seed(FLAGS.seed, "sample", row) for row in range(len(prompts))],
        temperature=FLAGS.temperature,
        top_k=FLAGS.top_k or None,
        top_p=None if FLAGS.top_p == 1.0 else FLAGS.top_p,
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
        num_tokens=FLAGS.num_tokens,
        choose=choose,
        stop=FLAGS.stop,
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
    lines = [f"{nats:9.4f}  {tokenizer.decode([token])!r}\n" for nats, token in each]
    return "".join(lines) + (
        f"{len(ids) - 1} tokens, {num_bytes} bytes: perplexity {scored.perplexity:.4g}, "
        f"{scored.nats / (len(ids) - 1):.4f} nats per token, "
        f"{scored.bits_per_byte(num_bytes):.4f} bits per byte\n"
    )
