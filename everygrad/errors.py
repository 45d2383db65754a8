"""Everything everygrad raises on purpose.

Each type also derives from the built-in one a Python user would expect, so `except ValueError`
keeps working for people who never import this module::

    EverygradError
    ├── ShapeError        (ValueError)    sizes that do not fit together
    │   └── NoAxisError   (TypeError)     a 0-d tensor where something with a length is needed
    ├── AxisError         (ValueError, IndexError)  an axis outside the dimensions, or named twice
    ├── OutOfRangeError   (IndexError)    an index outside the axis it points into
    ├── ArgumentError     (ValueError)    a parameter outside what an op accepts
    ├── ViewError         (ValueError)    a write to a view that would be lost to its source
    ├── DtypeError        (TypeError)     a dtype an op or a device does not take
    │   └── ExchangeError (BufferError, AttributeError)  another library's array, not to be shared
    ├── DeviceError       (RuntimeError)  tensors on different devices, or no such device
    │   └── OutOfMemoryError (MemoryError)
    ├── GradientError     (RuntimeError)  nothing to differentiate, or a wrong gradient
    │   ├── FreedGraphError               the graph was used up by an earlier backward
    │   ├── FunctionError                 a user-defined function returned something unusable
    │   └── AnomalyError                  a NaN appeared while anomaly mode was on
    ├── MissingOpsError   (NotImplementedError)  ops of another library's program not known here
    ├── PlacementError    (ValueError)    a placement that an op, a mesh or a file does not take
    ├── WorkerError       (RuntimeError)  a loader's worker died, or took too long
    ├── PeerLost          (RuntimeError, ConnectionError)  another rank died, hung, raised or ended
    ├── CollectiveMismatchError (RuntimeError)  ranks that call different collectives
    ├── TraceError        (RuntimeError)  a value was needed while only shapes are known
    ├── CompileError      (RuntimeError)  a fault of the compiler itself
    └── FileError         (ValueError)    a file that is damaged, or holds what is refused
        └── MissingFileError (FileNotFoundError)
"""


class EverygradError(Exception):
    """The root of the tree."""


class ShapeError(EverygradError, ValueError):
    """Sizes that do not fit together."""


class NoAxisError(ShapeError, TypeError):
    """A 0-d tensor where something with a length is needed."""


class AxisError(EverygradError, ValueError, IndexError):
    """An axis outside the tensor's dimensions, or named twice."""

    of_scalar = False  # axis 0 or -1 of a 0-d tensor: some ops take it for a row of one element


class OutOfRangeError(EverygradError, IndexError):
    """An index outside the axis it points into."""


class ArgumentError(EverygradError, ValueError):
    """A parameter outside what an op accepts."""


class ViewError(EverygradError, ValueError):
    """A write to a view, which would not reach the tensor that it is a view of."""


class DtypeError(EverygradError, TypeError):
    """A dtype an op or a device does not take."""


class ExchangeError(DtypeError, BufferError, AttributeError):
    """What another library gives cannot be shared, or is no array at all."""


class DeviceError(EverygradError, RuntimeError):
    """Tensors on different devices, or a device that is not there."""


class OutOfMemoryError(DeviceError, MemoryError):
    """A device could not give the memory asked for; nothing was changed."""


class GradientError(EverygradError, RuntimeError):
    """Nothing to differentiate, or a gradient that does not fit."""


class FreedGraphError(GradientError):
    """The graph was used up by an earlier backward pass."""


class FunctionError(GradientError):
    """A user-defined function returned something that cannot be a gradient."""


class AnomalyError(GradientError):
    """A NaN appeared while anomaly mode was on."""


class MissingOpsError(EverygradError, NotImplementedError):
    """A program uses ops that this library, or the format it is written in, has no form for; all of
    them are named."""

    def __init__(
        self, program: str, lacking: dict[str, list[str]], what: str = "no op here for"
    ) -> None:
        self.lacking = lacking
        names = "; ".join(f"{op} (at {', '.join(at[:4])})" for op, at in sorted(lacking.items()))
        super().__init__(f"{program}: {what} {len(lacking)}: {names}")


class PlacementError(EverygradError, ValueError):
    """A placement that an op does not take, or that does not fit a mesh."""


class WorkerError(EverygradError, RuntimeError):
    """A DataLoader's worker died, took too long, or raised what cannot be raised here; or a process
    ended before the tensor that it sent was taken."""


class PeerLost(EverygradError, RuntimeError, ConnectionError):  # noqa: N818  # a rank, not a fault
    """Another rank died, hung, raised or ended while this one waited for it in a collective.

    `rank` is the one that is lost, `collective` what this rank waited in, and `step` the number of
    that collective, counted from the start of the program.
    """

    def __init__(self, rank: int, collective: str, step: int, reason: str = "is lost") -> None:
        self.rank = rank
        self.collective = collective
        self.step = step
        self.reason = reason
        super().__init__(f"rank {rank} {reason}, while this one waited in {collective} (#{step})")


class CollectiveMismatchError(EverygradError, RuntimeError):
    """Ranks that must call the same collectives in the same order call different ones."""


class TraceError(EverygradError, RuntimeError):
    """A value was needed while only shapes and dtypes are known, or kept from where it has none."""


class CompileError(EverygradError, RuntimeError):
    """A fault of the compiler itself, never of the program it was given."""


class FileError(EverygradError, ValueError):
    """A file that is damaged, is not what it says, or holds what is refused."""


class MissingFileError(FileError, FileNotFoundError):
    """No such file, or no folder to put it into."""
