"""The command `python -m fidgpt.sample RUN`: a trained model writes, or scores texts."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from fidgpt.cli import app
from fidgpt.cli.trained import load_trained

if TYPE_CHECKING:
    from fidgpt.data import Tokenizer
    from fidgpt.model import LanguageModel
    from fidgpt.train import Precision


FLAGS = flags.FLAGS

flags.DEFINE_multi_string(
    "prompt",
    [""],
    "The beginning of the text; empty for that of a document. Repeated: texts are written at once.",
)
flags.DEFINE_integer("num_tokens", 200, "How many tokens to write.", lower_bound=1)
flags.DEFINE_float("temperature", 0.6, "0 writes the likeliest; 1 as the model believes.", 0.0)
flags.DEFINE_integer("top_k", 50, "Draw among so many of the likeliest tokens; 0 among all.", 0)
flags.DEFINE_float("top_p", 1.0, "Among the fewest that are this likely together.", 0.0, 1.0)
flags.DEFINE_float("min_p", 0.0, "Among those this share as likely as the likeliest.", 0.0, 1.0)
flags.DEFINE_float(
    "repetition_penalty", 1.0, "Above 1, what the text holds becomes less likely.", 0.0
)
flags.DEFINE_multi_string("stop", [], "A string that ends the text and is not shown. Repeated.")
flags.DEFINE_multi_string(
    "score", [], "A text: say how likely the model finds it, and write nothing. Repeated."
)
flags.DEFINE_integer("seed", 0, "Another seed draws another text.")
flags.DEFINE_boolean("float32", False, "Write in float32 even if the run computes in less.")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Streams text to standard output.

    Raises:
      ConfigError: not one directory was named, or a prompt is no text.
      RunError: the run has no model that could write, or there is not enough memory.
    """
    # Late: --help loads no torch.
    from fidgpt.graph import ConfigError
    from fidgpt.train.meters import within_memory

    if len(arguments) != 1:
        raise ConfigError("name one directory, of a run or of the hub: fidgpt.sample runs/NAME")
    _require_text("prompt", FLAGS.prompt)
    _require_text("stop", FLAGS.stop)
    _require_text("score", FLAGS.score)
    if not all(FLAGS.stop):
        raise ConfigError("--stop: an empty string ends every text: give one character at least.")
    if not all(FLAGS.score):
        raise ConfigError("--score is an empty text: there is nothing to score.")
    path = Path(arguments[0])
    with within_memory(remedy="Let it write fewer tokens, or fewer texts at once."):
        _write(path)


def _write(path: Path) -> None:
    from fidgpt.model.generation import prepare_to_write
    from fidgpt.train import RunError

    trained = load_trained(path)
    model, tokenizer, context = trained.model, trained.tokenizer, trained.seq_len
    if not (FLAGS.float32 or FLAGS.score):  # scores are what one compares
        model = _as_computed(model, trained.precision)
    prepare_to_write(model)
    try:
        if FLAGS.score:
            lines = (_scored(model, tokenizer, text, context=context) for text in FLAGS.score)
        else:
            lines = _written(model, tokenizer, context=context)
        for piece in lines:
            print(piece, end="", flush=True)
    except ValueError as error:
        raise RunError(f"{path} cannot write: {error}") from error


def _require_text(name: str, texts: Iterable[str]) -> None:
    from fidgpt.graph import ConfigError

    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise ConfigError(f"--{name} is not UTF-8 text.")


def _as_computed(model: "LanguageModel", precision: "Precision") -> "LanguageModel":
    """A model in the format of its run, or where that was narrow in what this machine is quick at.

    A token takes as long as reading all weights, of which half as many bytes are read sooner.
    """
    from fidgpt.train import native_precision

    return (native_precision() if precision.dtype.itemsize < 4 else precision).replica(model)


def _written(model: "LanguageModel", tokenizer: "Tokenizer", *, context: int) -> Iterator[str]:
    from fidgpt.model.generation import sampling
    from fidgpt.train import continuations, derive_seed

    choose = sampling(
        seeds=[derive_seed(FLAGS.seed, "sample", row) for row in range(len(FLAGS.prompt))],
        temperature=FLAGS.temperature,
        top_k=FLAGS.top_k or None,
        top_p=None if FLAGS.top_p == 1.0 else FLAGS.top_p,
        min_p=FLAGS.min_p or None,
        repetition_penalty=None if FLAGS.repetition_penalty == 1.0 else FLAGS.repetition_penalty,
        vocab_size=tokenizer.vocab_size,
    )
    steps = continuations(
        model,
        tokenizer,
        FLAGS.prompt,
        context=context,
        num_tokens=FLAGS.num_tokens,
        choose=choose,
        stop=FLAGS.stop,
    )
    return _one_after_the_other(FLAGS.prompt, steps)


def _one_after_the_other(prompts: Sequence[str], steps: Iterable[list[str]]) -> Iterator[str]:
    """The first text as it is written, then the others, which were written beside it."""
    others = [[prompt] for prompt in prompts[1:]]
    yield prompts[0]
    for first, *rest in steps:
        yield first
        for pieces, piece in zip(others, rest, strict=True):
            pieces.append(piece)
    yield "\n"
    for number, pieces in enumerate(others, start=2):
        yield f"\n-- {number} of {len(prompts)} --\n{''.join(pieces)}\n"


def _scored(model: "LanguageModel", tokenizer: "Tokenizer", text: str, *, context: int) -> str:
    """A line for each token, its log-probability and what it stands for; then the whole."""
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
