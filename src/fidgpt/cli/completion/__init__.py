"""Completion on bash, zsh and fish: from a line as it is typed to the words that may follow."""
