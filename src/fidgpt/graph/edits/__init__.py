"""Operations on a graph that somebody says in a line: each is done as a whole, or not at all."""

from fidgpt.graph.edits.edit import Edit
from fidgpt.graph.edits.relative import change_by, change_tag_by
from fidgpt.graph.edits.setting import delete, set_text, set_value, tag_text
from fidgpt.graph.edits.sharing import tie, untie
from fidgpt.graph.edits.using import use

__all__ = [
    "Edit",
    "change_by",
    "change_tag_by",
    "delete",
    "set_text",
    "set_value",
    "tag_text",
    "tie",
    "untie",
    "use",
]
