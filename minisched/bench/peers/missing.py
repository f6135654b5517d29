"""Stand-ins for packages that a peer imports, but that scheduling never calls.

They are what needs a GPU (kernels) or what only other features of the peer use (grammars).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Anything:
    """Can be called, indexed and asked for any attribute; as a decorator it changes nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Itself; as a decorator, what it decorates."""
        return args[0] if len(args) == 1 and callable(args[0]) and not options else self

    def __getattr__(self, name: str) -> Any:
        return attribute(name)

    def __getitem__(self, item: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class AnyClass(type):
    """A class with any attribute; one can be derived from it."""

    def __getattr__(cls, name: str) -> Any:
        return attribute(name)


class AnyModule(ModuleType):
    """A module with any attribute: names that begin with a capital are classes."""

    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        return AnyClass(name, (Anything,), {}) if name[0].isupper() else attribute(name)


def attribute(name: str) -> Any:
    """What a stand-in has under a name; Python's own names it lacks."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything()


class StandIns(MetaPathFinder, Loader):
    """Finds the packages and modules named, and everything below them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A package, if it is one of those named."""
        known = any(fullname == name or fullname.startswith(f"{name}.") for name in self.names)
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty one."""
        return AnyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing."""


def stand_in(*names: str, even_if_there: bool = False) -> None:
    """Let these packages or modules be imported although they are not installed.

    Those that are there stay, unless they are wanted to be stood in for ``even_if_there``.
    """
    sys.meta_path.insert(0 if even_if_there else len(sys.meta_path), StandIns(names))


KERNELS = "it compiles or holds kernels of a GPU"
UNUSED = "what it is for is never reached by scheduling"
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "sglang": {
        "triton": KERNELS,
        "tvm_ffi": KERNELS,
        "sgl_kernel": KERNELS,
        "flashinfer": KERNELS,
        "cuda": "the driver of a GPU",
        "torchvision": f"images: {UNUSED}",
        "sentencepiece": f"tokenizers: {UNUSED}",
        "compressed_tensors": f"weights: {UNUSED}",
        "gguf": f"weights: {UNUSED}",
        "grpc": f"a server: {UNUSED}",
        "IPython": f"notebooks: {UNUSED}",
    },
    "mini-sglang": {
        "triton": KERNELS,
        "tvm_ffi": KERNELS,
        "flashinfer": KERNELS,
        "sgl_kernel": KERNELS,
        "msgpack": f"sockets: {UNUSED}",
    },
    "vllm": {
        "xgrammar": f"grammars: {UNUSED}",
        "llguidance": f"grammars: {UNUSED}",
    },
}
"""By peer: packages that are not installed, and why nobody misses them."""
