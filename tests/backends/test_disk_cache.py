"""Object code on disk, written as attacks: whatever is not exactly ours is never returned."""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everygrad.backends import disk_cache
from everygrad.backends.cpu.llvm.compiler import Engine, engine
from everygrad.backends.disk_cache import DiskCache, from_environment
from everygrad.errors import ArgumentError

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no cache")

LIMIT = 1 << 20
HEADER = 88


def key_of(n: int) -> str:
    return hashlib.sha256(str(n).encode()).hexdigest()


KEY, OTHER = key_of(0), key_of(1)
CODE = bytes(range(256)) * 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(path: Path) -> DiskCache:
    made = DiskCache(path, LIMIT)
    made.put(KEY, CODE)
    assert made.get(KEY) == CODE
    return made


@pytest.fixture
def entry(cache: DiskCache) -> Path:
    return cache.path / f"{KEY}.o"


def names(cache: DiskCache) -> list[str]:
    return sorted(p.name for p in cache.path.iterdir())


# --- what it is for ------------------------------------------------------------------------------


def test_entries_are_found_by_the_next_process(cache: DiskCache) -> None:
    assert DiskCache(cache.path, LIMIT).get(KEY) == CODE
    assert cache.get(OTHER) is None
    assert names(cache) == [f"{KEY}.o"]  # no temporary files


def test_nobody_else_can_read_or_write(cache: DiskCache, entry: Path) -> None:
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_an_entry_can_be_replaced(cache: DiskCache) -> None:
    cache.put(KEY, b"new")
    assert cache.get(KEY) == b"new"


def test_nothing_and_too_much_are_not_kept(cache: DiskCache) -> None:
    cache.put(OTHER, b"")
    cache.put(OTHER, bytes(LIMIT + 1))
    assert cache.get(OTHER) is None


# --- attacks on the directory --------------------------------------------------------------------


def test_a_symlinked_directory(tmp_path: Path, path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        DiskCache(path, LIMIT)
    assert not list(target.iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702, 0o1777])
def test_a_directory_others_can_write(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(OSError, match="written by others"):
        DiskCache(path, LIMIT)


def test_a_file_in_place_of_the_directory(path: Path) -> None:
    path.write_text("not a directory")
    with pytest.raises(OSError, match="directory"):
        DiskCache(path, LIMIT)


def foreign(found: os.stat_result) -> os.stat_result:
    fields = list(found)
    fields[stat.ST_UID] = os.geteuid() + 1
    return os.stat_result(fields)


def test_a_directory_of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir(mode=0o700)
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: foreign(real(file)))
    with pytest.raises(OSError, match="belongs to user"):
        DiskCache(path, LIMIT)


def test_the_directory_is_replaced_later(cache: DiskCache, tmp_path: Path) -> None:
    cache.path.rename(tmp_path / "moved")
    cache.path.mkdir(mode=0o777)
    DiskCache(tmp_path / "moved", LIMIT)
    (cache.path / f"{OTHER}.o").write_bytes(b"evil")
    assert cache.get(OTHER) is None  # it still looks into the directory it checked
    assert cache.get(KEY) == CODE


@pytest.mark.parametrize(
    "prepare",
    [
        lambda path: path.symlink_to("/"),
        lambda path: (path.mkdir(), path.chmod(0o777)),
        lambda path: path.write_text(""),
    ],
)
def test_the_environment_gets_one_warning_and_the_cure(path: Path, prepare: Any) -> None:
    prepare(path)
    with pytest.warns(UserWarning, match="EVERYGRAD_CACHE_DIR") as caught:
        assert from_environment({"EVERYGRAD_CACHE_DIR": str(path)}) is None
    assert len(caught) == 1


# --- attacks on an entry -------------------------------------------------------------------------


def truncate(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:-1])


def truncate_to_the_header(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[: HEADER - 1])


def empty(entry: Path) -> None:
    entry.write_bytes(b"")


def lengthen(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes() + b"x")


def flip_a_byte(entry: Path) -> None:
    data = bytearray(entry.read_bytes())
    data[HEADER + 1000] ^= 1
    entry.write_bytes(data)


def flip_the_magic(entry: Path) -> None:
    entry.write_bytes(b"X" + entry.read_bytes()[1:])


def another_format(entry: Path) -> None:
    data = bytearray(entry.read_bytes())
    data[8] ^= 3
    entry.write_bytes(data)


def huge_length(entry: Path) -> None:
    data = bytearray(entry.read_bytes())
    data[48:56] = struct.pack("<Q", 1 << 62)
    entry.write_bytes(data)


def huge_file(entry: Path) -> None:
    with entry.open("r+b") as file:
        file.truncate(1 << 40)  # sparse: reading it would take all memory


def link_to_another_entry(entry: Path) -> None:
    elsewhere = entry.parent / "elsewhere"
    entry.rename(elsewhere)
    entry.symlink_to(elsewhere)


def others_can_write(entry: Path) -> None:
    entry.chmod(0o666)


def a_pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry, 0o600)


ATTACKS = [
    truncate,
    truncate_to_the_header,
    empty,
    lengthen,
    flip_a_byte,
    flip_the_magic,
    another_format,
    huge_length,
    huge_file,
    link_to_another_entry,
    others_can_write,
    a_pipe,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda f: f.__name__)
def test_a_bad_entry_is_deleted_and_made_anew(cache: DiskCache, entry: Path, attack: Any) -> None:
    attack(entry)
    assert cache.get(KEY) is None
    assert not os.path.lexists(entry)
    cache.put(KEY, CODE)
    assert cache.get(KEY) == CODE


def test_an_entry_under_another_name(cache: DiskCache, entry: Path) -> None:
    entry.rename(cache.path / f"{OTHER}.o")
    assert cache.get(OTHER) is None
    assert names(cache) == []


def test_an_entry_of_another_user(
    cache: DiskCache, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: foreign(real(file)))
    assert cache.get(KEY) is None


def test_a_directory_in_place_of_an_entry(cache: DiskCache) -> None:
    (cache.path / f"{OTHER}.o").mkdir()
    assert cache.get(OTHER) is None
    cache.put(OTHER, CODE)  # cannot be, and does no harm
    assert cache.get(OTHER) is None


def test_an_entry_removed_while_reading(
    cache: DiskCache, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstat

    def vanish(file: int) -> os.stat_result:
        entry.unlink(missing_ok=True)
        return real(file)

    monkeypatch.setattr(os, "fstat", vanish)
    assert cache.get(KEY) == CODE  # what is open stays readable
    assert cache.get(KEY) is None


def test_an_entry_cut_while_reading(
    cache: DiskCache, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstat

    def cut(file: int) -> os.stat_result:
        found = real(file)
        if entry.exists():
            os.truncate(entry, 100)
        return found

    monkeypatch.setattr(os, "fstat", cut)
    assert cache.get(KEY) is None


# --- full, read-only, too large ------------------------------------------------------------------


@pytest.mark.parametrize("step", ["open", "write", "rename"])
def test_a_disk_that_takes_nothing(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    real = getattr(os, step)

    def fail(*args: Any, **kwargs: Any) -> Any:
        if step == "open" and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    cache.put(OTHER, CODE)
    assert cache.get(OTHER) is None
    assert cache.get(KEY) == CODE
    assert names(cache) == [f"{KEY}.o"]


def test_the_oldest_entries_go_first(path: Path) -> None:
    cache = DiskCache(path, 20_000)
    for n in range(8):
        cache.put(key_of(n), CODE)
        os.utime(path / f"{key_of(n)}.o", (n + 1, n + 1))
    assert cache.get(key_of(0)) == CODE  # used: it is the newest now
    for n in range(8, 16):
        cache.put(key_of(n), CODE)
    left = [n for n in range(16) if cache.get(key_of(n))]
    assert left == [0, *range(16 - len(left) + 1, 16)]
    assert sum(p.stat().st_size for p in path.iterdir()) <= 20_000


def test_trimming_leaves_strangers_alone(cache: DiskCache) -> None:
    (cache.path / "thesis.tex").write_bytes(bytes(4 * LIMIT))
    old, young = f".{KEY}.17.abcd.tmp", f".{KEY}.18.abcd.tmp"
    for name in (old, young):
        (cache.path / name).write_bytes(b"left by a killed process")
    os.utime(cache.path / old, (1, 1))
    cache.trim()
    assert names(cache) == sorted([f"{KEY}.o", "thesis.tex", young])


def test_a_hit_is_cheap(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens one file, and does not look at the others."""
    opened: list[Any] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: (opened.append(a[0]), real(*a, **k))[1])
    for name in ("listdir", "scandir", "stat", "rename", "replace", "unlink"):
        monkeypatch.setattr(os, name, None)
    assert cache.get(KEY) == CODE
    monkeypatch.undo()
    assert opened == [f"{KEY}.o"]


# --- many processes ------------------------------------------------------------------------------

_WRITER = """
import sys
from pathlib import Path
from everygrad.backends.disk_cache import DiskCache
import hashlib
cache = DiskCache(Path(sys.argv[1]), 60_000)
for round in range(30):
    for n in range(20):
        key = hashlib.sha256(str(n).encode()).hexdigest()
        code = bytes([n]) * 5000
        found = cache.get(key)
        assert found is None or found == code
        cache.put(key, code)
"""


def test_many_processes_at_once(path: Path) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", _WRITER, str(path)]
    environment = {**os.environ, "PYTHONPATH": root}
    running = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    cache = DiskCache(path, 60_000)
    cache.trim()
    assert 0 < sum(p.stat().st_size for p in path.iterdir()) <= 60_000
    assert not [p for p in path.iterdir() if p.suffix == ".tmp"]


# --- the environment -----------------------------------------------------------------------------


def test_where_it_is(tmp_path: Path) -> None:
    where = disk_cache.default_directory
    assert where({"EVERYGRAD_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/c"}) == Path("/a/b")
    assert where({"XDG_CACHE_HOME": "/c"}) == Path("/c/everygrad")
    assert where({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache/everygrad"
    cache = from_environment({"XDG_CACHE_HOME": str(tmp_path / "x" / "y")})
    assert cache is not None
    assert (cache.path, cache.limit) == (tmp_path / "x/y/everygrad", 512 << 20)


def test_switched_off(path: Path) -> None:
    there = {"EVERYGRAD_CACHE_DIR": str(path)}
    assert from_environment({**there, "EVERYGRAD_CACHE": "0"}) is None
    assert from_environment({**there, "EVERYGRAD_CACHE_MB": "0"}) is None
    assert not path.exists()
    with pytest.raises(ArgumentError, match="EVERYGRAD_CACHE_MB=lots"):
        from_environment({**there, "EVERYGRAD_CACHE_MB": "lots"})


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.warns(UserWarning, match="home directory"):
        assert from_environment({}) is None


# --- the engine ----------------------------------------------------------------------------------

ADD = """
define i64 @sum(i64 %a, i64 %b) {
  %c = add i64 %a, %b
  %d = add i64 %c, NUMBER
  ret i64 %d
}
"""


@pytest.fixture
def used(cache: DiskCache) -> Iterator[DiskCache]:
    before = disk_cache.current()
    disk_cache.use(cache)
    yield cache
    disk_cache.use(before)


def call(address: int, a: int, b: int) -> int:
    number = ctypes.c_int64
    return ctypes.CFUNCTYPE(number, number, number)(address)(a, b)


def source(n: int) -> str:
    return ADD.replace("NUMBER", str(n)) + f"; {os.urandom(8).hex()}\n"


@pytest.mark.parametrize("vectorise", [True, False])
def test_the_engine_reads_what_it_wrote(used: DiskCache, vectorise: bool) -> None:
    text = source(5)
    assert call(engine().compile(text, "sum", vectorise), 1, 2) == 8
    before = len(names(used))
    assert call(Engine().compile(text, "sum", vectorise), 1, 2) == 8
    assert len(names(used)) == before


def test_the_engine_does_not_compile_what_is_there(
    used: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = source(6)
    engine().compile(text, "sum")
    fresh = Engine()
    monkeypatch.setattr(fresh, "_optimised", None)
    assert call(fresh.compile(text, "sum"), 1, 2) == 9
    assert call(fresh.compile(text, "sum"), 1, 3) == 10


def test_a_damaged_object_is_compiled_again(used: DiskCache) -> None:
    text = source(7)
    engine().compile(text, "sum")
    for file in used.path.iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    assert call(Engine().compile(text, "sum"), 1, 2) == 10


@pytest.mark.usefixtures("used")
def test_many_modules_at_once() -> None:
    texts = [(source(n), n % 2 == 0) for n in range(40)]
    texts += texts[:5]
    addresses = engine().compile_all(texts, "sum")
    assert [call(a, 0, 0) for a in addresses] == [*range(40), *range(5)]
    assert addresses[40:] == addresses[:5]
    assert engine().compile_all([], "sum") == []


def test_without_a_cache() -> None:
    before = disk_cache.current()
    disk_cache.use(None)
    try:
        assert call(engine().compile(source(8), "sum"), 1, 2) == 11
    finally:
        disk_cache.use(before)


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(ArgumentError, match="no function product"):
        engine().compile(source(9), "product")


def test_a_text_that_is_not_llvm() -> None:
    with pytest.raises(RuntimeError, match="parsing error"):
        engine().compile_all([(source(9), True), ("nonsense", True)], "sum")


@pytest.mark.parametrize("filters", [(), ("-W", "error")])
def test_the_warning_is_heard(tmp_path: Path, filters: tuple[str, ...]) -> None:
    """Nothing in the package swallows it: neither its filter of NumPy's warnings nor an op."""
    (tmp_path / "file").write_text("")
    program = "import everygrad as eg; print(eg.jit(lambda x: eg.sin(x) * 2)(eg.ones((5000,)))[0])"
    env = {**os.environ, "EVERYGRAD_CACHE_DIR": str(tmp_path / "file")}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    result = subprocess.run(
        [sys.executable, *filters, "-c", program], env=env, capture_output=True, text=True
    )
    assert "UserWarning" in result.stderr
    assert "EVERYGRAD_CACHE_DIR" in result.stderr
    assert (result.returncode == 0) == (not filters)
    if not filters:
        assert result.stderr.count("UserWarning") == 1
        assert "1.68" in result.stdout


def test_numpys_warnings_are_not_heard() -> None:
    program = "import everygrad as eg; print(eg.log(eg.zeros((2,))), eg.ones((2,)) / 0)"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for filters in ((), ("-W", "error")):
        result = subprocess.run(
            [sys.executable, *filters, "-c", program], env=env, capture_output=True, text=True
        )
        assert (result.returncode, result.stderr) == (0, "")
