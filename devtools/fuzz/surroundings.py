"""A program amid Python objects that change between calls: a compiled function must see it.

The program's results are scaled by numbers that it reads from random places: names, attributes,
items, at the end of random paths through containers, objects and functions. The text is a user's:
it is compiled as such, so that the tracer follows it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

HEADER = """\
from types import SimpleNamespace
class Holder:
    shared = 0.0
    def __init__(self, held): self.held = held
    @property
    def seen(self): return self.held
    def get(self): return self.held
    def __getitem__(self, key): return self.held
class Slotted:
    __slots__ = ("held",)
    def __init__(self, held): self.held = held
def identity(x): return x
def first(xs): return [x for x in xs][0]
def through(*args, **kwargs): return args[0] if args else kwargs["v"]
"""

# How an object is put around another, and how the inner one is read again from the outer.
WRAPPERS: list[tuple[str, str]] = [
    ('{"k": %s}', '%s["k"]'),
    ('{"k": %s, "other": 1}', '%s.get("k")'),
    ("{3: %s}", "%s[1 + 2]"),
    ('{"k1": %s}', '%s[f"k{1}"]'),
    ("[%s]", "%s[0]"),
    ("[0.0, %s]", "%s[-1]"),
    ("(%s, 1)", "%s[0]"),
    ("[%s, 2]", "first(%s)"),
    ('{"k": %s}', "[v for v in %s.values()][0]"),
    ('{"k": %s}', "next(v for k, v in %s.items())"),
    ("[%s]", "list(%s)[0]"),
    ("[%s]", "sorted(%s, key=id)[0]"),
    ("[%s]", "(lambda xs: xs[0])(%s)"),
    ("[%s]", "through(*%s)"),
    ('{"v": %s}', "through(**%s)"),
    ("SimpleNamespace(a=%s)", "%s.a"),
    ("SimpleNamespace(a=%s)", 'getattr(%s, "a")'),
    ("SimpleNamespace(a=%s)", 'vars(%s)["a"]'),
    ("Holder(%s)", "%s.held"),
    ("Holder(%s)", "%s.seen"),
    ("Holder(%s)", "%s.get()"),
    ('Holder(%s)', '%s["any"]'),
    ("Slotted(%s)", "%s.held"),
    ("(lambda held: lambda: held)(%s)", "%s()"),
    ("[%s]", "identity(%s)[0]"),
    ("[%s]", "(%s if True else None)[0]"),
]  # fmt: skip

NUMBERS = (0.5, -1.5, 2.0, 2, 1, 1.0, True, 0.0, -0.0, 0.25)


class Place:
    """A random path to a number: `text` makes the outermost object, `read` gives the number."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self.name = name
        self.steps = [rng.choice(WRAPPERS) for _ in range(rng.randrange(4))]
        self.read = name
        for _, read in self.steps:
            self.read = read % self.read

    def make(self, number: Any) -> str:
        text = repr(number)
        for around, _ in reversed(self.steps):
            text = around % text
        return text


def amid(f: Callable[..., Any], seed: int) -> tuple[Callable[..., Any], Iterator[str]]:
    """f amid surroundings, and an iterator each of whose steps changes something there."""
    rng = random.Random(seed)
    places = [Place(rng, f"p{i}") for i in range(rng.randrange(1, 4))]
    kinds = [rng.choice(("global", "cell", "attribute", "default", "inner")) for _ in places]
    space: dict[str, Any] = {"program": f, "around": SimpleNamespace()}
    exec(compile(HEADER, "<fuzz>", "exec"), space)
    for place in places:
        space[place.name] = _made(place, rng.choice(NUMBERS), space)
    exec(compile(_text(places, kinds), "<fuzz>", "exec"), space)
    run, setters = space["build"]()
    return run, _changes(rng, places, kinds, space, setters)


def _text(places: list[Place], kinds: list[str]) -> str:
    """The user's program: a function in a function, and what sets the places anew."""
    lines = ["def build():"]
    reads = []
    for place, kind in zip(places, kinds, strict=True):
        n = place.name
        if kind in ("cell", "inner"):
            lines += [f"    {n} = globals()[{n!r}]", f"    def set_{n}(v):",
                      f"        nonlocal {n}", f"        {n} = v"]  # fmt: skip
        elif kind == "attribute":
            lines += [f"    around.{n} = globals()[{n!r}]",
                      f"    def set_{n}(v): around.{n} = v"]  # fmt: skip
        elif kind == "default":
            lines += [f"    box_{n} = [globals()[{n!r}]]",
                      f"    def read_{n}(box=box_{n}): return {place.read.replace(n, 'box[0]', 1)}"
                      if place.read.count(n) == 1 else f"    def read_{n}(box=box_{n}): return 1.0",
                      f"    def set_{n}(v): box_{n}[0] = v"]  # fmt: skip
        else:
            lines += [f"    def set_{n}(v): globals()[{n!r}] = v"]
        read = place.read
        if kind == "attribute":
            read = read.replace(n, f"around.{n}")
        elif kind == "default":
            read = f"read_{n}()"
        elif kind == "inner":
            read = f"(lambda: {read})()"
        reads.append(read)
    total = " + ".join(f"1.0 * ({r})" for r in reads)
    lines += [
        "    def run(*args):",
        "        out = program(*args)",
        f"        scale = {total}",
        f"        signs = [1.0 if str(1.0 * ({reads[0]})).startswith('-') else 0.0]",
        "        kind = {int: 1.0, float: 2.0, bool: 3.0}",
        f"        extra = kind[type({reads[0]})] + signs[0]",
        "        return [o * scale + extra if 'float' in str(o.dtype) else o for o in out]",
        "    setters = dict(" + ", ".join(f"{p.name}=set_{p.name}" for p in places) + ")",
        "    return run, setters",
    ]
    return "\n".join(lines)


def _made(place: Place, number: Any, space: dict[str, Any]) -> Any:
    return eval(place.make(number), space)


def _changes(
    rng: random.Random,
    places: list[Place],
    kinds: list[str],
    space: dict[str, Any],
    setters: dict[str, Callable[[Any], None]],
) -> Iterator[str]:
    held = {p.name: space[p.name] for p in places}
    for count in itertools.count():
        place = rng.choice(places)
        number = rng.choice(NUMBERS)
        inner = _containers(held[place.name])
        how = rng.choice(("whole", "leaf", "leaf", "same"))
        if how == "same":
            yield f"{count}: nothing"
        elif how == "leaf" and inner and _set_leaf(inner[-1], number):
            yield f"{count}: {place.read} = {number!r} in place"
        else:
            held[place.name] = _made(place, number, space)
            setters[place.name](held[place.name])
            yield f"{count}: {place.name} anew, {number!r}"


def _containers(outer: Any) -> list[Any]:
    """The objects along the path that can be changed, the innermost last."""
    found: list[Any] = []
    while not isinstance(outer, int | float):
        if isinstance(outer, dict):
            found.append(outer)
            outer = next((v for k, v in outer.items() if k in ("k", "k1", 3, "v")), 0)
        elif isinstance(outer, list | tuple):
            found.append(outer)
            outer = next((v for v in outer if not isinstance(v, int | float)), 0)
        elif hasattr(outer, "held") or hasattr(outer, "a"):
            found.append(outer)
            outer = outer.held if hasattr(outer, "held") else outer.a
        else:  # a function: what it closes over cannot be changed from here
            return []
    return found


def _set_leaf(holder: Any, number: Any) -> bool:
    """Put a number where the innermost object has one."""
    if isinstance(holder, dict):
        key = next((k for k in ("k", "k1", 3, "v") if k in holder), None)
        if key is None:
            return False
        holder[key] = number
    elif isinstance(holder, list):
        at = 0 if len(holder) == 1 or holder[-1] in (1, 2) else len(holder) - 1
        holder[at] = number
    elif hasattr(holder, "held"):
        holder.held = number
    elif hasattr(holder, "a"):
        holder.a = number
    else:
        return False
    return True
