"""The one error of this package: something about the user's text, tokenizer or disk."""


class DataError(ValueError):
    """What is wrong with a corpus, a tokenizer or a directory, where, and what to do about it."""
