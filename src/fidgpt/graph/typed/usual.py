"""Values as they are usually typed, which need no parser: `12`, `3e-4`, `true`, a bare word."""

import re
from typing import Any

NOT_USUAL = object()
_BOOLS = {"true": True, "True": True, "false": False, "False": False}
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?(e-?[0-9]{1,2})?")


def read_usual(text: str, hint: Any) -> Any:
    """What `read_value` makes of a text where a plain number, bool or text is asked.

    Returns:
      The value; `NOT_USUAL` where it takes a closer look to know what the text means, if anything.
    """
    word = text.strip()
    if hint is str:
        return NOT_USUAL if word[:1] in ("'", '"') else text
    if hint is bool:
        return _BOOLS.get(word, NOT_USUAL)
    if hint is int and _WHOLE.fullmatch(word):
        return int(word)
    if hint is float and _DECIMAL.fullmatch(word):
        return float(int(word)) if _WHOLE.fullmatch(word) else float(word)  # -0 has no sign
    return NOT_USUAL
