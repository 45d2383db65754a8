"""Native threads for native code: one foreign call runs a whole list of steps on all cores.

    parallel(function, blocks, args)    f(lo, hi, args) over [0, blocks), on all threads
    run_steps(steps, count, slots)      a replay: step after step without a return to Python

Functions are `void f(i64 lo, i64 hi, ptr args)`; all arguments here are addresses and counts. A
step is five words, see `STEP_WORDS`: the function, its number of blocks, how many arguments it
has, where their slot numbers are (an i64 each), and where to put them: args[i] = slots[numbers[i]].
A negative number of blocks links a step to the next one, which has as many: the thread that runs a
block of the first runs that block of the second right after it, while its results are in the cache.
Slot 0 points to four i64 words. The first is an error word, initially 0: once a step has set it, no
further step runs. The last is set to 1 at the end. A list of steps must not run twice concurrently,
since it owns its args arrays.

Each thread has a share of the blocks, the same share in every call, so that a step finds in a
core's cache what the previous step wrote there. A thread that finishes its share steals from the
others, so a worker that wakes late costs nothing. Whatever the threads, each block runs once, in
any order.

Workers are daemon threads inside one foreign call that never returns. After a job they spin for
20 us, yield the core for another 80, and then sleep on a semaphore. A nested call, from any thread,
runs its blocks serially; so does a second thread while the workers are busy. Ctrl-C is handled when
the call returns. Only Linux has workers: macOS and Windows lack the
semaphores, and there everything runs in the caller.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

from everygrad.backends import thread_pool
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.core.scopes import at_once

STEP_WORDS = 5  # function, blocks, number of arguments, slot numbers, args
MAX_THREADS = 256  # larger requests are clamped to this
_HAS_WORKERS = sys.platform == "linux"

# The pool, in bytes. Lines are 128 apart, as processors fetch 64-byte lines in pairs.
# The first word is the lock: 1 while a job runs.
_THREADS = 8  # how many threads may work, the caller included
_SPINS = 16  # pauses that take about 20 us
_TICKET = 128  # counts jobs; the job follows, in the cache line that the workers poll
_FUNCTION, _ARGS, _BLOCKS, _PARTS = 136, 144, 152, 160
_DONE = 256  # blocks the workers have done
_SLOTS, _SLOT = 384, 128  # for each thread: claim, whether it sleeps, its semaphore
_ASLEEP, _SEMAPHORE = 8, 16
_SIZE = _SLOTS + _SLOT * MAX_THREADS

_PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "AMD64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
    "arm64": "call void @llvm.aarch64.hint(i32 1)",
}
_PAUSE_DECLARATION = {
    "x86_64": "declare void @llvm.x86.sse2.pause()",
    "AMD64": "declare void @llvm.x86.sse2.pause()",
    "aarch64": "declare void @llvm.aarch64.hint(i32)",
    "arm64": "declare void @llvm.aarch64.hint(i32)",
}

_SYSTEM = """
declare i32 @sched_yield()
declare i32 @sem_init(ptr, i32, i32)
declare i32 @sem_wait(ptr)
declare i32 @sem_post(ptr)
"""

_NO_SYSTEM = """
define internal i32 @sched_yield() { ret i32 0 }
define internal i32 @sem_init(ptr %s, i32 %a, i32 %b) { ret i32 0 }
define internal i32 @sem_wait(ptr %s) { ret i32 0 }
define internal i32 @sem_post(ptr %s) { ret i32 0 }
"""

# n pauses: the time of one differs tenfold between processors, so it is measured
_REST = """
define void @pauses(i64 %n) nounwind {
entry:
  br label %again
again:
  %i = phi i64 [ 0, %entry ], [ %i.next, %again ]
  PAUSE
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %n
  br i1 %more, label %again, label %done
done:
  ret void
}
"""

# A claim is job << 32 | remaining blocks of a share; threads claim blocks by lowering it. It counts
# down so that a claim of a finished job can never be taken for one of the next job: what a thread
# reads of the job between loading and exchanging a claim belongs to that claim, since a job changes
# only after all its blocks are done. Returns how many blocks were done.
_HELP = f"""
define internal i64 @help(ptr %pool, i64 %me) nounwind {{
entry:
  %function.at = getelementptr i8, ptr %pool, i64 {_FUNCTION}
  %args.at = getelementptr i8, ptr %pool, i64 {_ARGS}
  %blocks.at = getelementptr i8, ptr %pool, i64 {_BLOCKS}
  %parts.at = getelementptr i8, ptr %pool, i64 {_PARTS}
  %count = load atomic i64, ptr %parts.at monotonic, align 8
  %invited = icmp ult i64 %me, %count
  br i1 %invited, label %share, label %leave
share:
  %j = phi i64 [ 0, %entry ], [ %j.next, %empty ]
  %sum = phi i64 [ 0, %entry ], [ %sum.now, %empty ]
  %straight = add i64 %me, %j
  %over = icmp uge i64 %straight, %count
  %wrapped = sub i64 %straight, %count
  %p = select i1 %over, i64 %wrapped, i64 %straight
  %offset = mul i64 %p, {_SLOT}
  %offset.slot = add i64 %offset, {_SLOTS}
  %slot = getelementptr i8, ptr %pool, i64 %offset.slot
  br label %look
look:
  %sum.now = phi i64 [ %sum, %share ], [ %sum.now, %claim ], [ %sum.more, %work ]
  %claimed = load atomic i64, ptr %slot acquire, align 8
  %left = and i64 %claimed, 4294967295
  %none = icmp eq i64 %left, 0
  br i1 %none, label %empty, label %claim
claim:
  %function = load atomic ptr, ptr %function.at monotonic, align 8
  %args = load atomic ptr, ptr %args.at monotonic, align 8
  %blocks = load atomic i64, ptr %blocks.at monotonic, align 8
  %parts = load atomic i64, ptr %parts.at monotonic, align 8
  %p.next = add i64 %p, 1
  %end.scaled = mul i64 %blocks, %p.next
  %end = udiv i64 %end.scaled, %parts
  %left.up = add i64 %left, 3
  %chunk = lshr i64 %left.up, 2
  %less = sub i64 %claimed, %chunk
  %exchanged = cmpxchg ptr %slot, i64 %claimed, i64 %less acq_rel monotonic, align 8
  %won = extractvalue {{ i64, i1 }} %exchanged, 1
  br i1 %won, label %work, label %look
work:
  %lo = sub i64 %end, %left
  %hi = add i64 %lo, %chunk
  call void %function(i64 %lo, i64 %hi, ptr %args)
  %sum.more = add i64 %sum.now, %chunk
  br label %look
empty:
  %j.next = add i64 %j, 1
  %j.more = icmp ult i64 %j.next, %count
  br i1 %j.more, label %share, label %leave
leave:
  %total = phi i64 [ 0, %entry ], [ %sum.now, %empty ]
  ret i64 %total
}}
"""

# One worker. It announces that it sleeps and then reads the ticket once more; a caller that posts a
# job sets the ticket and then reads who sleeps: in this order one of them always sees the other.
_SERVE = f"""
define void @serve(ptr %pool, i64 %me) nounwind {{
entry:
  %ticket.at = getelementptr i8, ptr %pool, i64 {_TICKET}
  %parts.at = getelementptr i8, ptr %pool, i64 {_PARTS}
  %done.at = getelementptr i8, ptr %pool, i64 {_DONE}
  %spins.at = getelementptr i8, ptr %pool, i64 {_SPINS}
  %brief = load i64, ptr %spins.at, align 8
  %polite = lshr i64 %brief, 4
  %patience = add i64 %brief, %polite
  %offset = mul i64 %me, {_SLOT}
  %offset.asleep = add i64 %offset, {_SLOTS + _ASLEEP}
  %asleep = getelementptr i8, ptr %pool, i64 %offset.asleep
  %offset.semaphore = add i64 %offset, {_SLOTS + _SEMAPHORE}
  %semaphore = getelementptr i8, ptr %pool, i64 %offset.semaphore
  %made = call i32 @sem_init(ptr %semaphore, i32 0, i32 0)
  br label %watch
watch:
  %seen = phi i64 [ 0, %entry ], [ %seen, %spin ], [ %seen, %yield ], [ %seen, %cancel ],
              [ %seen, %sleep ], [ %ticket, %next ]
  %n = phi i64 [ 0, %entry ], [ %n.next, %spin ], [ %n.next, %yield ], [ 0, %cancel ],
           [ 0, %sleep ], [ %n.start, %next ]
  %ticket = load atomic i64, ptr %ticket.at acquire, align 8
  %fresh = icmp ne i64 %ticket, %seen
  br i1 %fresh, label %job, label %idle
job:
  %did = call i64 @help(ptr %pool, i64 %me)
  %any = icmp ne i64 %did, 0
  br i1 %any, label %report, label %next
report:
  %before = atomicrmw add ptr %done.at, i64 %did release, align 8
  br label %next
next:
  %count = load atomic i64, ptr %parts.at monotonic, align 8
  %invited = icmp ult i64 %me, %count
  %n.start = select i1 %invited, i64 0, i64 %patience
  br label %watch
idle:
  %n.next = add i64 %n, 1
  %tired = icmp ugt i64 %n, %patience
  br i1 %tired, label %lie.down, label %wait
wait:
  %calm = icmp ugt i64 %n, %brief
  br i1 %calm, label %yield, label %spin
spin:
  PAUSE
  br label %watch
yield:
  call void @pauses(i64 16)
  %yielded = call i32 @sched_yield()
  br label %watch
lie.down:
  store atomic i64 1, ptr %asleep seq_cst, align 8
  %last = load atomic i64, ptr %ticket.at seq_cst, align 8
  %missed = icmp ne i64 %last, %seen
  br i1 %missed, label %cancel, label %sleep
cancel:
  %mine = atomicrmw xchg ptr %asleep, i64 0 acq_rel, align 8
  %cancelled = icmp ne i64 %mine, 0
  br i1 %cancelled, label %watch, label %sleep
sleep:
  %woken = call i32 @sem_wait(ptr %semaphore)
  %interrupted = icmp ne i32 %woken, 0
  br i1 %interrupted, label %sleep, label %watch
}}
"""

_PARALLEL = f"""
define void @parallel(ptr %pool, ptr %function, i64 %blocks, ptr %args) nounwind {{
entry:
  %threads.at = getelementptr i8, ptr %pool, i64 {_THREADS}
  %threads = load atomic i64, ptr %threads.at monotonic, align 8
  %fewer = icmp slt i64 %blocks, %threads
  %parts = select i1 %fewer, i64 %blocks, i64 %threads
  %several = icmp sgt i64 %parts, 1
  %countable = icmp ult i64 %blocks, 4294967296
  %try = and i1 %several, %countable
  br i1 %try, label %lock, label %small
small:
  %some = icmp sgt i64 %blocks, 0
  br i1 %some, label %serial, label %leave
lock:
  %exchanged = cmpxchg ptr %pool, i64 0, i64 1 acquire monotonic, align 8
  %free = extractvalue {{ i64, i1 }} %exchanged, 1
  br i1 %free, label %post, label %serial
serial:
  call void %function(i64 0, i64 %blocks, ptr %args)
  br label %leave
leave:
  ret void
post:
  %ticket.at = getelementptr i8, ptr %pool, i64 {_TICKET}
  %function.at = getelementptr i8, ptr %pool, i64 {_FUNCTION}
  %args.at = getelementptr i8, ptr %pool, i64 {_ARGS}
  %blocks.at = getelementptr i8, ptr %pool, i64 {_BLOCKS}
  %parts.at = getelementptr i8, ptr %pool, i64 {_PARTS}
  %done.at = getelementptr i8, ptr %pool, i64 {_DONE}
  %spins.at = getelementptr i8, ptr %pool, i64 {_SPINS}
  %brief = load i64, ptr %spins.at, align 8
  %ticket.old = load atomic i64, ptr %ticket.at monotonic, align 8
  %ticket = add i64 %ticket.old, 1
  %job = shl i64 %ticket, 32
  store atomic ptr %function, ptr %function.at monotonic, align 8
  store atomic ptr %args, ptr %args.at monotonic, align 8
  store atomic i64 %blocks, ptr %blocks.at monotonic, align 8
  store atomic i64 %parts, ptr %parts.at monotonic, align 8
  store atomic i64 0, ptr %done.at monotonic, align 8
  br label %share
share:
  %p = phi i64 [ 0, %post ], [ %p.next, %share ]
  %begin = phi i64 [ 0, %post ], [ %end, %share ]
  %p.next = add i64 %p, 1
  %end.scaled = mul i64 %blocks, %p.next
  %end = udiv i64 %end.scaled, %parts
  %length = sub i64 %end, %begin
  %claim = or i64 %job, %length
  %offset = mul i64 %p, {_SLOT}
  %offset.claim = add i64 %offset, {_SLOTS}
  %claim.at = getelementptr i8, ptr %pool, i64 %offset.claim
  store atomic i64 %claim, ptr %claim.at release, align 8
  %p.more = icmp ult i64 %p.next, %parts
  br i1 %p.more, label %share, label %call
call:
  store atomic i64 %ticket, ptr %ticket.at seq_cst, align 8
  br label %look
look:
  %w = phi i64 [ 1, %call ], [ %w.next, %looked ]
  %w.offset = mul i64 %w, {_SLOT}
  %w.offset.asleep = add i64 %w.offset, {_SLOTS + _ASLEEP}
  %w.asleep = getelementptr i8, ptr %pool, i64 %w.offset.asleep
  %sleeps = load atomic i64, ptr %w.asleep seq_cst, align 8
  %dozing = icmp ne i64 %sleeps, 0
  br i1 %dozing, label %take, label %looked
take:
  %was = atomicrmw xchg ptr %w.asleep, i64 0 acq_rel, align 8
  %ours = icmp ne i64 %was, 0
  br i1 %ours, label %wake, label %looked
wake:
  %w.semaphore = getelementptr i8, ptr %w.asleep, i64 {_SEMAPHORE - _ASLEEP}
  %woken = call i32 @sem_post(ptr %w.semaphore)
  br label %looked
looked:
  %w.next = add i64 %w, 1
  %w.more = icmp ult i64 %w.next, %parts
  br i1 %w.more, label %look, label %join
join:
  %mine = call i64 @help(ptr %pool, i64 0)
  %theirs = sub i64 %blocks, %mine
  br label %check
check:
  %n = phi i64 [ 0, %join ], [ %n.next, %pause ], [ %n.next, %yield ]
  %done = load atomic i64, ptr %done.at acquire, align 8
  %complete = icmp eq i64 %done, %theirs
  br i1 %complete, label %unlock, label %wait
wait:
  %n.next = add i64 %n, 1
  %long = icmp ugt i64 %n, %brief
  br i1 %long, label %yield, label %pause
pause:
  PAUSE
  br label %check
yield:
  call void @pauses(i64 16)
  %yielded = call i32 @sched_yield()
  br label %check
unlock:
  store atomic i64 0, ptr %pool release, align 8
  ret void
}}
"""

_RUN_STEPS = f"""
define void @pair(i64 %lo, i64 %hi, ptr %frame) nounwind {{
entry:
  %first.args.at = getelementptr ptr, ptr %frame, i64 1
  %second.at = getelementptr ptr, ptr %frame, i64 2
  %second.args.at = getelementptr ptr, ptr %frame, i64 3
  %first = load ptr, ptr %frame, align 8
  %first.args = load ptr, ptr %first.args.at, align 8
  %second = load ptr, ptr %second.at, align 8
  %second.args = load ptr, ptr %second.args.at, align 8
  br label %block
block:
  %b = phi i64 [ %lo, %entry ], [ %b.next, %block ]
  %b.next = add i64 %b, 1
  call void %first(i64 %b, i64 %b.next, ptr %first.args)
  call void %second(i64 %b, i64 %b.next, ptr %second.args)
  %more = icmp slt i64 %b.next, %hi
  br i1 %more, label %block, label %done
done:
  ret void
}}

define void @run_steps(ptr %pool, ptr %steps, i64 %count, ptr %slots) nounwind {{
entry:
  %error = load ptr, ptr %slots, align 8
  store i64 0, ptr %error, align 8
  %frame = alloca [4 x ptr], align 16
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %step, label %leave
step:
  %s = phi i64 [ 0, %entry ], [ %s.next, %ran ]
  %linked = phi i1 [ false, %entry ], [ %links, %ran ]
  %words = mul i64 %s, {STEP_WORDS}
  %at = getelementptr i64, ptr %steps, i64 %words
  %blocks.at = getelementptr i64, ptr %at, i64 1
  %n.at = getelementptr i64, ptr %at, i64 2
  %numbers.at = getelementptr i64, ptr %at, i64 3
  %args.at = getelementptr i64, ptr %at, i64 4
  %function = load ptr, ptr %at, align 8
  %blocks = load i64, ptr %blocks.at, align 8
  %n = load i64, ptr %n.at, align 8
  %numbers = load ptr, ptr %numbers.at, align 8
  %args = load ptr, ptr %args.at, align 8
  %has = icmp sgt i64 %n, 0
  br i1 %has, label %fill, label %filled
fill:
  %i = phi i64 [ 0, %step ], [ %i.next, %fill ]
  %number.at = getelementptr i64, ptr %numbers, i64 %i
  %number = load i64, ptr %number.at, align 8
  %from = getelementptr ptr, ptr %slots, i64 %number
  %value = load ptr, ptr %from, align 8
  %to = getelementptr ptr, ptr %args, i64 %i
  store ptr %value, ptr %to, align 8
  %i.next = add i64 %i, 1
  %i.more = icmp slt i64 %i.next, %n
  br i1 %i.more, label %fill, label %filled
filled:
  %links = icmp slt i64 %blocks, 0
  %half = select i1 %linked, i64 2, i64 0
  %half.args = add i64 %half, 1
  %frame.function = getelementptr ptr, ptr %frame, i64 %half
  %frame.args = getelementptr ptr, ptr %frame, i64 %half.args
  store ptr %function, ptr %frame.function, align 8
  store ptr %args, ptr %frame.args, align 8
  br i1 %links, label %ran, label %now
now:
  br i1 %linked, label %both, label %one
both:
  call void @parallel(ptr %pool, ptr @pair, i64 %blocks, ptr %frame)
  br label %ran
one:
  %single = icmp eq i64 %blocks, 1
  br i1 %single, label %serial, label %spread
serial:
  call void %function(i64 0, i64 1, ptr %args)
  br label %ran
spread:
  call void @parallel(ptr %pool, ptr %function, i64 %blocks, ptr %args)
  br label %ran
ran:
  %code = load i64, ptr %error, align 8
  %good = icmp eq i64 %code, 0
  %s.next = add i64 %s, 1
  %s.more = icmp slt i64 %s.next, %count
  %on = and i1 %good, %s.more
  br i1 %on, label %step, label %leave
leave:
  %ended = getelementptr i64, ptr %error, i64 3
  store i64 1, ptr %ended, align 8
  ret void
}}
"""


def source() -> str:
    """The LLVM IR of this module."""
    machine = platform.machine()
    system = _SYSTEM if _HAS_WORKERS else _NO_SYSTEM
    body = "".join((_REST, _HELP, _SERVE, _PARALLEL, _RUN_STEPS))
    body = body.replace("PAUSE", _PAUSE.get(machine, ""))
    return _PAUSE_DECLARATION.get(machine, "") + system + body


class _Native(NamedTuple):
    """The compiled functions. Calls release the GIL."""

    pauses: Callable[[int], None]
    serve: Callable[[int, int], None]
    parallel: Callable[[int, int, int, int], None]
    run_steps: Callable[[int, int, int, int], None]


@cache
def _native() -> _Native:
    names = ("pauses", "serve", "parallel", "run_steps")
    address = engine().functions(source(), names, vectorise=False)
    word = ctypes.c_size_t
    return _Native(
        ctypes.CFUNCTYPE(None, word)(address["pauses"]),
        ctypes.CFUNCTYPE(None, word, word)(address["serve"]),
        ctypes.CFUNCTYPE(None, word, word, word, word)(address["parallel"]),
        ctypes.CFUNCTYPE(None, word, word, word, word)(address["run_steps"]),
    )


@cache
def _spins() -> int:
    """How many pauses take 20 us."""
    pauses, count = _native().pauses, 200
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        pauses(count)
        best = min(best, time.perf_counter() - start)
    return max(20, round(20e-6 * count / best))


class _WorkerPool:
    """The memory that workers share, and their number. Neither is ever freed: workers may still
    read the memory while the interpreter shuts down."""

    def __init__(self) -> None:
        memory = (ctypes.c_char * (_SIZE + _SLOT))()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
        self.address = -(-ctypes.addressof(memory) // _SLOT) * _SLOT
        self.threads = 1
        self.workers: list[tuple[int, int]] = []  # the arguments of each worker
        self.lock = threading.Lock()
        self._put(_THREADS, 1)
        self._put(_SPINS, _spins())

    def _put(self, offset: int, value: int) -> None:
        ctypes.c_int64.from_address(self.address + offset).value = value

    def resize(self, count: int) -> None:
        """Sets the number of threads that share work from now on."""
        serve = _native().serve
        with self.lock:
            wanted = min(count, MAX_THREADS) if _HAS_WORKERS else 1
            while len(self.workers) < wanted - 1:
                given = (self.address, len(self.workers) + 1)
                start = partial(start_new_thread, serve, given)
                # started and counted in one native call, so that no two workers get one number
                at_once(start, partial(self.workers.append, given))()
            self._put(_THREADS, wanted)
            self.threads = count


_serial: _WorkerPool | None = None  # of one thread: for calls inside tasks of threads.parallel_for
_shared: _WorkerPool | None = None
_lock = threading.Lock()


def _after_fork() -> None:
    """A forked child has the parent's pool but none of its threads."""
    global _serial, _shared, _lock
    _serial = _shared = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _make_pools() -> None:
    global _serial, _shared
    with _lock:
        if _shared is None:
            _serial, _shared = _WorkerPool(), _WorkerPool()


def _pool() -> int:
    """The address of the pool for a call of this thread."""
    pool = _serial if thread_pool.inside() else _shared
    if pool is None:
        _make_pools()
        return _pool()
    if pool is _shared and pool.threads != thread_pool.num_threads():
        pool.resize(thread_pool.num_threads())
    return pool.address


def parallel(function_address: int, blocks: int, args_address: int) -> None:
    """Calls the function on ranges that partition [0, blocks), on all threads; waits for all."""
    _native().parallel(_pool(), function_address, blocks, args_address)


def run_steps(steps_address: int, count: int, slots_address: int) -> None:
    """Runs `count` steps one after the other, until one sets the error word."""
    _native().run_steps(_pool(), steps_address, count, slots_address)
