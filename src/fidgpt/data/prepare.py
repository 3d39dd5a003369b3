"""The command `python -m fidgpt.data.prepare`: tokenize a corpus before training."""

import argparse
import sys
import time
from collections.abc import Sequence

from fidgpt.data.preparation import DEFAULT_SHARD_TOKENS, DEFAULT_VALIDATION_FRACTION, Corpus
from fidgpt.data.prepared import PreparedCorpus
from fidgpt.data.sources import StandardLibrary, TextFiles
from fidgpt.data.tokenizers import BPETokenizer, ByteTokenizer, TokenizerFile


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(arguments)
    started = time.perf_counter()
    try:
        corpus = _prepare(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped; the same command resumes after the last finished shard.", file=sys.stderr)
        return 130
    print(_report(corpus, seconds=time.perf_counter() - started))
    return 0


def _prepare(options: argparse.Namespace) -> PreparedCorpus:
    source = StandardLibrary()
    if options.source is not None:
        fields = {"text_field": options.text_field, "counted_field": options.counted_field}
        source = TextFiles(options.source, patterns=options.pattern or ["*"], **fields)
    tokenizer = BPETokenizer(vocab_size=options.vocab_size)
    if options.tokenizer is not None:
        is_bytes = options.tokenizer == "bytes"
        tokenizer = ByteTokenizer() if is_bytes else TokenizerFile(options.tokenizer)
    names = ("validation_fraction", "shard_tokens", "num_workers")
    settings = {name: getattr(options, name) for name in names}
    corpus = Corpus(source, tokenizer=tokenizer, **settings)
    if options.out is None:
        return corpus.prepare(show_progress=not options.quiet)
    return corpus.prepare_in(options.out, show_progress=not options.quiet)


def _report(corpus: PreparedCorpus, *, seconds: float) -> str:
    train, validation = corpus.train, corpus.validation
    num_bytes = train.num_bytes + validation.num_bytes
    num_tokens = train.num_tokens + validation.num_tokens
    return (
        f"{corpus.directory}\n"
        f"  training  {train.num_tokens:>13,} tokens in {train.num_documents:,} documents\n"
        f"  held out  {validation.num_tokens:>13,} tokens in {validation.num_documents:,} documents"
        f"\n  {corpus.tokenizer.vocab_size:,} tokens in the vocabulary, "
        f"{num_bytes / num_tokens:.2f} bytes per token, {num_bytes / 1e6:.1f} MB of text, "
        f"{seconds:.1f} s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fidgpt.data.prepare",
        description="Write a corpus as shards of token ids. By default: the source code of "
        "Python's standard library, into the cache.",
        allow_abbrev=False,
    )
    parser.add_argument("--source", metavar="PATH", help="a file or folder of text")
    parser.add_argument("--text_field", default="text", help="field of JSON lines and Parquet")
    parser.add_argument("--counted_field", help="field of the spans that count in the loss")
    parser.add_argument("--pattern", action="append", help='files to read from a folder ("*.txt")')
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--vocab_size", type=int, default=4096, help="size of the BPE to train")
    kind.add_argument("--tokenizer", metavar="bytes|FILE", help='"bytes", or a tokenizer.json')
    parser.add_argument("--out", metavar="DIR", help="output directory, instead of the cache")
    parser.add_argument("--validation_fraction", type=float, default=DEFAULT_VALIDATION_FRACTION)
    parser.add_argument("--shard_tokens", type=int, default=DEFAULT_SHARD_TOKENS)
    parser.add_argument("--num_workers", type=int, help="threads; by default one per core")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


if __name__ == "__main__":
    sys.exit(main())
