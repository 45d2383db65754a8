"""Text: arrays of Python's strings, which no device holds."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np

from everygrad.errors import ArgumentError
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import array_of


def _mapped(x: Any, function: Any, dtype: Any = object) -> Any:
    found = np.empty(x.shape, dtype)
    found.reshape(-1)[:] = [function(v) for v in x.reshape(-1)]
    return found


@onnx_op("StringConcat", raw=True)
def _string_concat(call: Call, x: Any, y: Any) -> Any:
    return np.asarray(np.frompyfunc(lambda a, b: a + b, 2, 1)(x, y), object)


@onnx_op("StringSplit", raw=True)
def _string_split(call: Call, x: Any) -> Any:
    delimiter, most = call("delimiter") or None, call("maxsplit", -1)
    parts = [str(v).split(delimiter, most) for v in x.reshape(-1)]
    width = max((len(p) for p in parts), default=0)
    found = np.full((len(parts), width), "", object)
    for row, words in zip(found, parts, strict=True):
        row[: len(words)] = words
    counts = np.array([len(p) for p in parts], np.int64)
    return found.reshape((*x.shape, width)), counts.reshape(x.shape)


@onnx_op("RegexFullMatch", raw=True)
def _regex_full_match(call: Call, x: Any) -> Any:
    try:
        pattern = re.compile(call("pattern"))
    except re.error as error:
        raise ArgumentError(f"RegexFullMatch: {call('pattern')!r}: {error}") from None
    return _mapped(x, lambda v: pattern.fullmatch(v) is not None, bool)


@onnx_op("StringNormalizer", raw=True)
def _string_normalizer(call: Call, x: Any) -> Any:
    case = call("case_change_action", "NONE")
    change: Any = {"UPPER": str.upper, "LOWER": str.lower, "NONE": str}[case]
    sensitive = bool(call("is_case_sensitive", 0))
    stops = {w if sensitive else w.lower() for w in call("stopwords", [])}
    rows = x if x.ndim == 2 else x[None]
    kept = [[w for w in row if (w if sensitive else w.lower()) not in stops] for row in rows]
    found = [[change(w) for w in row] or [""] for row in kept]
    out = np.empty((len(found), len(found[0])), object)
    for i, row in enumerate(found):
        out[i, :] = row
    return out if x.ndim == 2 else out[0]


@onnx_op("TfIdfVectorizer", raw=True)
def _tf_idf_vectorizer(call: Call, x: Any) -> Any:
    known = array_of(x)
    pool = call("pool_strings") or call("pool_int64s")
    starts = [*call("ngram_counts"), len(pool)]
    places: dict[tuple[Any, ...], int] = {}
    for n, (first, last) in enumerate(pairwise(starts), start=1):
        for at in range(first, last, n):
            places[tuple(pool[at : at + n])] = len(places)
    index = call("ngram_indexes")
    weights = call("weights") or [1.0] * len(index)
    rows = known if known.ndim == 2 else known[None]
    out = np.zeros((len(rows), max(index) + 1), np.float32)
    shortest, longest = call("min_gram_length"), call("max_gram_length")
    for row, words in zip(out, rows, strict=True):
        found: Counter[int] = Counter()
        for n in range(shortest, min(longest, len(words)) + 1):
            skips = min(call("max_skip_count"), len(words)) if n > 1 else 0
            for skip in range(1, skips + 2):
                reach = (n - 1) * skip
                for at in range(len(words) - reach):
                    gram = tuple(
                        v if isinstance(v, str) else int(v)
                        for v in words[at : at + reach + 1 : skip]
                    )
                    if gram in places:
                        found[places[gram]] += 1
        for place, count in found.items():
            row[index[place]] = {
                "TF": count,
                "IDF": weights[place],
                "TFIDF": count * weights[place],
            }[call("mode")]
    return out if known.ndim == 2 else out[0]
