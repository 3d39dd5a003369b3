"""Tokenizers: learned, read from files, or of bytes."""
