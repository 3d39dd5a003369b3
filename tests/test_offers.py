"""What a package without `__all__` offers as components, by dotted names."""

import sys
import types

import pytest

from fidgpt.compose.catalogue import offers


def test_a_package_offers_what_it_imports_from_its_own_modules_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As pytorch_optimizer 4.1.0, whose __init__ imports its optimizers and has no __all__.
    package, module = types.ModuleType("kindlab"), types.ModuleType("kindlab.soap")
    package.__path__ = []
    own = type("SOAP", (), {"__module__": "kindlab.soap"})
    other = type("Tensor", (), {"__module__": "kindlab2.tensor"})
    vars(package).update(SOAP=own, Tensor=other, _Hidden=own)
    vars(module).update(SOAP=own, Other=type("Other", (), {"__module__": "kindlab.soap.inner"}))
    for one in (package, module):
        monkeypatch.setitem(sys.modules, one.__name__, one)
    assert offers(package) == {"SOAP": own}
    assert offers(module) == {"SOAP": own}
