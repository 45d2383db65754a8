"""What tests of training steps share."""

from typing import Any

import pytest

from everygrad._jit.jit import Jitted


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each time that a function was traced."""
    found: list[Any] = []
    compile_ = Jitted.compile

    def counted(self: Jitted, *args: Any) -> Any:
        found.append(self)
        return compile_(self, *args)

    monkeypatch.setattr(Jitted, "compile", counted)
    return found
