"""The whole zoo, one line of it after the other."""

from __future__ import annotations

from devtools.zoo import sound_and_plain, text, vision
from devtools.zoo.cases import Case

CASES: dict[str, Case] = {
    case.name: case for case in (*text.CASES, *vision.CASES, *sound_and_plain.CASES)
}
