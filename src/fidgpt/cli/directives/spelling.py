"""How directives are spelled: what kinds there are, and of which kind one is."""

DEFAULT_CONFIG = "base"
BASES = ("config", "config_file", "config_str")  # where a graph begins
_BY_MACHINE = "for_hardware"  # what it does elsewhere, nobody knows here


def split_directive(directive: str) -> tuple[str, str]:
    """The kind of a directive, "" where it has none, and the rest."""
    kind, colon, rest = directive.partition(":")
    return (kind.strip(), rest) if colon else ("", directive)


def is_base(directive: str) -> bool:
    """Whether a directive says where a graph begins."""
    return split_directive(directive)[0] in BASES


def is_by_machine(directive: str) -> bool:
    """Whether a directive is a fiddler that does, on each machine, what that machine needs."""
    kind, rest = split_directive(directive)
    return kind == "fiddler" and rest.partition("(")[0].strip().split(".")[-1] == _BY_MACHINE
