"""Kernels as the worst device that WGSL allows would run them.

`hostile` rewrites a kernel: every operation on f32 becomes a call of a function that takes
subnormal numbers for 0, before and after; divisions are up to 2.5 units in the last place off,
square roots up to 4.5; on request a product goes into a sum without being rounded. It reads the
part of WGSL that the renderer writes, and works out types, since integers share the operators.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PRELUDE = """
fn flush(x: f32) -> f32 {
  var b = bitcast<u32>(x);
  if ((b & 0x7f800000u) == 0u) { b = b & 0x80000000u; }
  return bitcast<f32>(b);
}
fn hostile_add(a: f32, b: f32) -> f32 { return flush(flush(a) + flush(b)); }
fn hostile_sub(a: f32, b: f32) -> f32 { return flush(flush(a) - flush(b)); }
fn hostile_mul(a: f32, b: f32) -> f32 { return flush(flush(a) * flush(b)); }
fn off_by(x: f32, seed: u32, most: u32) -> f32 {  // a normal number moved by up to `most` units
  let b = bitcast<u32>(x);
  let e = (b >> 23u) & 255u;
  if (e < 2u || e > 253u) { return x; }
  let mixed = (seed ^ (seed >> 15u)) * 0x2c1b3c6du;
  return bitcast<f32>(b + (((mixed >> 12u) ^ (mixed >> 3u)) % (2u * most + 1u)) - most);
}
fn hostile_div(a: f32, b: f32) -> f32 {
  let large = (bitcast<u32>(b) & 0x7fffffffu) > 0x7e800000u;
  let y = select(flush(b), bitcast<f32>(0x7f800000u | (bitcast<u32>(b) & 0x80000000u)), large);
  let seed = bitcast<u32>(a) * 0x9e3779b1u + bitcast<u32>(b) * 0x85ebca77u;
  return flush(off_by(flush(a) / y, seed, 2u));
}
fn hostile_sqrt(x: f32) -> f32 {
  return flush(off_by(sqrt(flush(x)), bitcast<u32>(x) * 0x9e3779b1u, 4u));
}
fn high_half(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }
fn hostile_fma(a: f32, b: f32, c: f32) -> f32 {  // the product's rest goes into the sum as well
  let p = hostile_mul(a, b);
  let e = (bitcast<u32>(p) >> 23u) & 255u;
  let s = hostile_add(p, c);
  if (e < 50u || e > 230u || ((bitcast<u32>(s) >> 23u) & 255u) > 230u) { return s; }
  let ah = high_half(a);
  let bh = high_half(b);
  let al = hostile_sub(a, ah);
  let bl = hostile_sub(b, bh);
  let head = hostile_sub(hostile_mul(ah, bh), p);
  let middle = hostile_add(hostile_add(head, hostile_mul(ah, bl)), hostile_mul(al, bh));
  let rest = hostile_add(middle, hostile_mul(al, bl));
  let back = hostile_sub(s, p);
  let lost = hostile_add(hostile_sub(p, hostile_sub(s, back)), hostile_sub(c, back));
  return hostile_add(s, hostile_add(lost, rest));
}
"""

_TOKEN = re.compile(
    r"\s+|//[^\n]*|(?P<token>\b(?:vec[234]|bitcast|array)<[\w<>, ]*>(?=\()"
    r"|0x[0-9a-fA-F]+u?|\d+\.\d*(?:e[+-]?\d+)?f?|\d+(?:e[+-]?\d+)f?|\d+[uif]?"
    r"|\w+|<<|>>|<=|>=|==|!=|&&|\|\||->|[-+*/%&|^!~<>=(){}\[\];:,.@])"
)
_LEVELS = [
    ["||"], ["&&"], ["|"], ["^"], ["&"], ["==", "!="], ["<", "<=", ">", ">="],
    ["<<", ">>"], ["+", "-"], ["*", "/", "%"],
]  # fmt: skip
_NAMES = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_SAME = ("floor", "ceil", "trunc", "round", "abs", "min", "max", "clamp", "sqrt")
_GLOBAL = re.compile(r"var<[^>]*> (\w+): ([\w<>, ]+);")
_FUNCTION = re.compile(r"fn (\w+)\(([^{]*)\)(?: -> ([\w<>, ]+))? \{")


class Typed(NamedTuple):
    """An expression. `int` and `float` are numbers that take the type of what they meet; `product`
    holds the factors of a product of floats."""

    text: str
    type: str
    product: tuple[str, str] | None = None


def _is_float(*sides: Typed) -> bool:
    """Whether this is arithmetic of f32 at run time."""
    return any(s.type == "f32" for s in sides)


def _common(*sides: Typed) -> str:
    types = {s.type for s in sides} - {"int", "float"}
    abstract = "float" if any(s.type == "float" for s in sides) else "int"
    return types.pop() if types else abstract


class _Body:
    """Rewrites the statements of one function, from token to token."""

    def __init__(self, tokens: list[str], names: dict[str, str], results: dict[str, str]) -> None:
        self.tokens, self.at = tokens, 0
        self.names, self.results = names, results
        self.products: dict[str, tuple[str, str]] = {}  # names of products, which fuse as well
        self.fused = False

    def peek(self) -> str:
        return self.tokens[self.at]

    def take(self, wanted: str = "") -> str:
        token = self.tokens[self.at]
        assert token == wanted or not wanted, (wanted, self.tokens[self.at - 5 : self.at + 5])
        self.at += 1
        return token

    # --- expressions -----------------------------------------------------------------------------

    def expression(self, level: int = 0) -> Typed:
        if level == len(_LEVELS):
            return self.unary()
        left = self.expression(level + 1)
        while self.peek() in _LEVELS[level]:
            left = self.binary(self.take(), left, self.expression(level + 1))
        return left

    def binary(self, op: str, a: Typed, b: Typed) -> Typed:
        if op in _COMPARISONS:
            wrap = "flush({})" if _is_float(a, b) else "{}"
            return Typed(f"({wrap.format(a.text)} {op} {wrap.format(b.text)})", "bool")
        if not _is_float(a, b):
            shifted = op in ("<<", ">>")
            return Typed(f"({a.text} {op} {b.text})", a.type if shifted else _common(a, b))
        if self.fused and op in "+-" and a.product is not None:
            added = b.text if op == "+" else f"-({b.text})"
            return Typed(f"hostile_fma({', '.join(a.product)}, {added})", "f32")
        if self.fused and op in "+-" and b.product is not None:
            first = b.product[0] if op == "+" else f"-({b.product[0]})"
            return Typed(f"hostile_fma({first}, {b.product[1]}, {a.text})", "f32")
        product = (a.text, b.text) if op == "*" else None
        return Typed(f"hostile_{_NAMES[op]}({a.text}, {b.text})", "f32", product)

    def unary(self) -> Typed:
        if self.peek() not in "-!~*&":
            return self.postfix()
        op, value = self.take(), self.unary()
        if op == "*":
            return Typed(f"*{value.text}", value.type.removeprefix("ptr<function, ").rstrip(">"))
        text = f"{op}({value.text})" if op in "-!~" else f"&{value.text}"
        return Typed(f"flush({text})" if op == "-" and _is_float(value) else text, value.type)

    def postfix(self) -> Typed:
        value = self.primary()
        while self.peek() in (".", "["):
            if self.take() == ".":
                part = self.take()
                inner = self.names.get(f"{value.text}.{part}") or _part(value.type, part)
                value = Typed(f"{value.text}.{part}", inner)
            else:
                index = self.expression()
                self.take("]")
                value = Typed(f"{value.text}[{index.text}]", _element(value.type))
        return value

    def primary(self) -> Typed:
        token = self.take()
        if token == "(":
            value = self.expression()
            self.take(")")
            return value._replace(text=f"({value.text})")
        if token[0].isdigit():
            return Typed(token, _number(token))
        if self.peek() == "(":
            return self.call(token)
        if token in ("true", "false"):
            return Typed(token, "bool")
        return Typed(token, self.names[token], self.products.get(token))

    def arguments(self) -> list[Typed]:
        self.take("(")
        made = []
        while self.peek() != ")":
            made.append(self.expression())
            if self.peek() == ",":
                self.take()
        self.take(")")
        return made

    def call(self, name: str) -> Typed:
        args = self.arguments()
        texts = [a.text for a in args]
        if name == "select":
            return Typed(f"select({', '.join(texts)})", _common(*args[:2]))
        if name in _SAME and _is_float(*args):
            texts = [f"flush({t})" for t in texts]
            return Typed(f"{'hostile_' * (name == 'sqrt')}{name}({', '.join(texts)})", "f32")
        if name in ("i32", "u32") and _is_float(*args):
            texts = [f"flush({t})" for t in texts]
        found = self.results.get(name) or re.sub(r"^bitcast<(.*)>$", r"\1", name)
        if name in (*_SAME, "countLeadingZeros"):
            found = _common(*args)
        return Typed(f"{name}({', '.join(texts)})", found)

    # --- statements ------------------------------------------------------------------------------

    def block(self) -> str:
        self.take("{")
        made = []
        while self.peek() != "}":
            made.append(self.statement())
        self.take("}")
        return "{\n" + "\n".join(made) + "\n}"

    def statement(self) -> str:
        token = self.peek()
        if token == "{":
            return self.block()
        if token == "if":
            return self.condition()
        if token == "loop":
            return self.take() + " " + self.block()
        if token == "for":
            return self.counted()
        if token in ("break", "continue"):
            made = self.take()
        elif token == "return":
            made = self.take()
            if self.peek() != ";":
                made += " " + self.expression().text
        else:
            made = self.assignment()
        self.take(";")
        return made + ";"

    def condition(self) -> str:
        self.take("if")
        made = f"if ({self.expression().text}) {self.block()}"
        if self.peek() == "else":
            self.take()
            made += " else " + (self.condition() if self.peek() == "if" else self.block())
        return made

    def counted(self) -> str:
        self.take("for")
        self.take("(")
        parts = [self.assignment()]
        self.take(";")
        parts.append(self.expression().text)
        self.take(";")
        parts.append(self.assignment())
        self.take(")")
        return f"for ({'; '.join(parts)}) {self.block()}"

    def assignment(self) -> str:
        if self.peek() not in ("let", "var"):
            target = self.unary().text
            self.take("=")
            return f"{target} = {self.expression().text}"
        word, name, kind = self.take(), self.take(), ""
        made = f"{word} {name}"
        if self.peek() == ":":
            self.take()
            while self.peek() not in ("=", ";"):
                kind += self.take()
            made += f": {kind}"
        if self.peek() == "=":
            self.take()
            value = self.expression()
            made += f" = {value.text}"
            if word == "let" and value.product is not None:
                self.products[name] = value.product
            kind = kind or {"float": "f32", "int": "i32"}.get(value.type, value.type)
        self.names[name] = kind
        return made


def _part(kind: str, part: str) -> str:
    inner = _element(kind)
    return inner if len(part) == 1 else f"vec{len(part)}<{inner}>"


def _element(kind: str) -> str:
    return kind.split("<", 1)[1].rsplit(">", 1)[0].rsplit(",", 1)[0]


def _number(token: str) -> str:
    if token.endswith("u"):
        return "u32"
    if token.startswith("0x"):
        return "int"
    if token.endswith("f"):
        return "f32"
    return "float" if "." in token or "e" in token else "int"


def _tokens(text: str) -> list[str]:
    made, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, text[at : at + 40]
        at = match.end()
        if match["token"]:
            made.append(match["token"])
    return made


def _types(parameters: str) -> dict[str, str]:
    plain = re.sub(r"@builtin\(\w+\)", "", parameters)
    found = re.findall(r"(\w+)\s*:\s*([\w<>]+(?:, \w+>)?)", plain)
    return dict(found)


def hostile(source: str, fused: bool = False) -> str:
    """The kernel on a device that flushes and divides badly; `fused`: it contracts as well."""
    functions = list(_FUNCTION.finditer(source))
    results = {f[1]: f[3] or "" for f in functions}
    shared = {**dict(_GLOBAL.findall(source)), "P.v": "array<vec4<u32>>"}
    made, at = [PRELUDE], 0
    for f in functions:
        end = _closing(source, f.end())
        names = {**shared, "P": "Params", **_types(f[2])}
        body = _Body([*_tokens(source[f.end() - 1 : end]), ""], names, results)
        body.fused = fused
        made += [source[at : f.end() - 1], body.block()]
        at = end
    return "".join([*made, source[at:]])


def _closing(text: str, start: int) -> int:
    """Where the block that is open at `start` ends."""
    depth, at = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at
