"""What is replaced in other libraries: one table of hooks, each checked when its module is imported.

A name that is missing, or has other parameters, is an error on every rank, or a line where the hook is optional.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.metadata
import inspect
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matex_tf import errors
from matex_tf.runtime import notes
from matex_tf.version import TRIED

Make = Callable[[Any], Any]
Put = Callable[[Any, str, Make], None]
NAMES = {"tensorflow": "TensorFlow", "keras": "Keras"}
"""The libraries whose newer versions are told, with their names for people."""
_ANY = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)

APIS = " ".join(
    ("tensorflow", *(f"tensorflow{inner}.compat.v{version}" for inner in ("._api.v2", "") for version in "12"))
)
"""The modules that have TensorFlow's functions for scripts. The last two are made where one is imported by its name."""


def call_when_imported(module: str, act: Callable[[Any], object]) -> None:
    """Call `act(module)` as soon as the module is imported; now, if it is."""
    import wrapt

    was_imported = module in sys.modules

    def run(found: Any) -> None:
        try:
            act(found)
        except errors.SetupError:
            if not was_imported:  # a script that takes it for a missing library meets it again at the next import
                sys.modules.pop(module, None)
                wrapt.register_post_import_hook(run, module)
            raise

    wrapt.register_post_import_hook(run, module)


def put_function(owner: Any, name: str, make: Make) -> None:
    """Replace `owner.name` by `make(original)`, which keeps the original's name, docstring and signature."""
    found = vars(owner)[name] if isinstance(owner, type) and name in vars(owner) else getattr(owner, name)
    is_wrapped = isinstance(found, (property, staticmethod))
    original: Any = getattr(found, "fget" if isinstance(found, property) else "__func__") if is_wrapped else found
    made = make(original)
    if made is original:
        return
    if isinstance(made, type):
        made.__module__, made.__qualname__, made.__doc__ = original.__module__, original.__qualname__, original.__doc__
    elif callable(original) and callable(made):
        made = functools.wraps(original)(made)
    setattr(owner, name, type(found)(made) if is_wrapped else made)


@dataclass(eq=False)
class Hook:
    """One function, property, class or value of another library, in place of which another stands."""

    module: str
    name: str
    """Within the module: "Model.fit"."""
    make: Make
    lost: str
    """What a run lacks without it."""
    made: list[Any] = field(default_factory=list, repr=False)
    """What the hooks of one declaration have put in place: two of its modules may be one."""
    takes: str = ""
    """Parameters of the original that `make` relies on, beside those that the stand-in names."""
    since: str = ""
    until: str = ""
    """The versions of the library that have it: from `since` on, before `until`."""
    optional: bool = False
    """A run is right without it."""
    later: bool = False
    """Its module may be imported after the library, or never."""
    early: bool = False
    """It is put in place before the rest of the library takes it from its module."""
    when: Callable[[], bool] | None = None
    """Whether this rank needs it, asked when it is put in place."""
    put: Put = put_function
    """How it is put in place."""
    placed_in: Any = field(default=None, repr=False)
    """The module in which it was put in place."""

    @property
    def library(self) -> str:
        top = self.module.partition(".")[0]
        return "python" if top in sys.stdlib_module_names else top

    def fits(self, version: str) -> bool:
        """Whether `version` of the library has it; an unknown one counts as the newest."""
        if not version:
            return not self.until
        found = _parse_version(version)
        return _parse_version(self.since) <= found and not (self.until and found >= _parse_version(self.until))

    def describe_versions(self) -> str:
        """In brackets, such as "(from 3, before 4)"; "" if any has it."""
        limits = [f"{word} {version}" for word, version in (("from", self.since), ("before", self.until)) if version]
        return f" ({', '.join(limits)})" if limits else ""

    def install(self) -> None:
        """Put it in place once its library is imported, or, if it is `early`, its module; now if that is."""
        top = self.module.partition(".")[0]
        first = self.module if self.early else top
        call_when_imported(first, lambda _: call_when_imported(self.module, self.put_in_place))
        call_when_imported(top, lambda _: self.check_module())

    def _is_due(self) -> bool:
        return (self.when is None or self.when()) and self.fits(find_version(self.library))

    def put_in_place(self, module: Any) -> None:
        """Replace it in `module`, once. Raises SetupError where a required one does not fit."""
        if self.placed_in is module or not self._is_due():
            return
        *path, name = self.name.split(".")
        try:
            owner = functools.reduce(getattr, path, module)
        except AttributeError:
            owner = None
        try:
            if has_name(owner, name):
                self.put(owner, name, self._make_checked)
            else:
                self._tell(f"has no `{self.name}` in {self.module}")
        except errors.SetupError:
            raise
        except Exception as error:
            self._tell(f"has another `{self.name}` in {self.module} ({error!r})", error)
        self.placed_in = module

    def _make_checked(self, original: Any) -> Any:
        if any(original is made for made in self.made):
            return original
        made = self.make(original)
        if made is original:
            return original
        lacking = find_lacking(original, made, self.takes.split(), "." in self.name)
        if lacking:
            self._tell(f"has `{self.name}` in {self.module} {lacking}")
            return original
        self.made.append(made)
        return made

    def check_module(self) -> None:
        """Once the library is imported: its module is, too, or may be later. Raises SetupError as `put_in_place`."""
        if self.module in sys.modules:  # its own import went by us where a finder of the script's had found it
            self.put_in_place(sys.modules[self.module])
        elif not self._is_due():
            return
        elif not is_there(self.module):
            self._tell(f"has no module {self.module}, of which `{self.name}` is replaced")
        elif not self.later:
            notes.print_note(f"{self.library} was imported without {self.module}: {self.lost}")

    def _tell(self, what: str, cause: Exception | None = None) -> None:
        if not self.optional:
            raise errors.SetupError(self._explain(what)) from cause
        notes.print_note(self._explain(what))

    def _explain(self, what: str) -> str:
        found, tried = find_version(self.library), TRIED.get(self.library)
        text = f"{self.library} {found or '(of unknown version)'} {what}. Without this hook {self.lost}."
        if tried:
            text += f" The newest {self.library} tried is {tried}: `{_find_install_command(self.library)}=={tried}`"
            text += "." if self.optional else ", or set MATEX_DISABLE=1 to run the script without matex_tf."
        elif not self.optional:
            text += f" Install an older {self.library}, or set MATEX_DISABLE=1 to run the script without matex_tf."
        return text


class Table:
    """The hooks of one patch file, in the order in which they are put in place, with `options` that they share."""

    def __init__(self, **options: Any):
        self.hooks: list[Hook] = []
        self.options = options

    def __iter__(self) -> Iterator[Hook]:
        return iter(self.hooks)

    def replace(self, modules: str, names: str, lost: str, **options: Any) -> Callable[[Make], Make]:
        """Declare that what `make(original)` gives stands in place of each of `names` in each of `modules`.

        `modules` and `names` are separated by spaces; `options` are fields of `Hook`.
        """

        def declare(make: Make) -> Make:
            shared = {**self.options, **options, "made": []}
            places = [(module, name) for module in modules.split() for name in names.split()]
            self.hooks += [Hook(module, name, make, lost, **shared) for module, name in places]
            return make

        return declare

    def install(self) -> None:
        for hook in self.hooks:
            hook.install()


def has_name(owner: Any, name: str) -> bool:
    """Whether `owner` has `name`, and not, as a class has `__init__`, from `object` or its metaclass alone."""
    if isinstance(owner, type):
        return any(name in vars(kind) for kind in owner.__mro__ if kind is not object)
    return hasattr(owner, name)


def find_lacking(original: Any, made: Any, takes: Sequence[str] = (), is_method: bool = False) -> str:
    """In what the parameters of `original` are not those that `made`, its stand-in, relies on; "" if they are.

    The stand-in names the first parameters, in their order, and all of them if it takes no others.
    """
    if isinstance(original, type) or isinstance(made, type):
        return ""
    try:
        theirs, ours = (list(inspect.signature(one).parameters.values())[is_method:] for one in (original, made))
    except (TypeError, ValueError):
        return ""  # C code, or no function
    names = [one.name for one in theirs if one.kind not in _ANY]
    wanted = [one.name for one in ours if one.kind not in _ANY]
    takes_any, is_open = len(names) < len(theirs), len(wanted) < len(ours)
    first = names[: len(wanted)] if is_open else names
    if takes_any:
        first, wanted, takes = first[: len(wanted)], wanted[: len(first)], ()
    if first != wanted:
        return f"with the parameters {first} in place of {wanted}"
    missing = [name for name in takes if name not in names]
    return f"without the parameter {missing[0]}" if missing else ""


def is_there(module: str) -> bool:
    """Whether `module` could be imported; nothing is."""
    return module in sys.modules or _find_spec(module) is not None


def _find_spec(module: str) -> importlib.machinery.ModuleSpec | None:
    parent = module.rpartition(".")[0]
    path = None
    if parent in sys.modules:
        path = getattr(sys.modules[parent], "__path__", None) or ()
    elif parent:
        spec = _find_spec(parent)
        path = () if spec is None else spec.submodule_search_locations or ()
    return importlib.machinery.PathFinder.find_spec(module, path)


@functools.cache
def _find_distribution(library: str) -> importlib.metadata.Distribution | None:
    """What pip has installed it by, such as `tensorflow_cpu`."""
    try:
        return importlib.metadata.distribution(library)
    except importlib.metadata.PackageNotFoundError:
        named = importlib.metadata.packages_distributions().get(library)  # it takes its time
        return importlib.metadata.distribution(named[0]) if named else None


def _find_install_command(library: str) -> str:
    """The command that installs a release of `library`. A nightly build has no releases under its own name."""
    installed = _find_distribution(library)
    if installed is None:
        return f"pip install {library}"
    if ".dev" in installed.version:
        return f"pip uninstall {installed.name}; pip install {library}"
    return f"pip install {installed.name}"


def list_newer(versions: Mapping[str, str]) -> list[str]:
    """The libraries with versions, such as "Keras 3.16.0", that are newer in `versions` than the newest tried."""
    return [f"{name} {versions[one]}" for one, name in NAMES.items() if is_newer(versions[one], TRIED[one])]


def describe_tried(newer: Sequence[str]) -> str:
    """The newest versions tried, and those that `list_newer` found here."""
    text = ", ".join(f"{name} {TRIED[library]}" for library, name in NAMES.items())
    return f"{text}; newer here: {', '.join(newer)}, not tried yet" if newer else text


def note_newer() -> None:
    """Name versions of TensorFlow and Keras that are newer than the newest tried, in one line."""
    if newer := list_newer({library: find_version(library) for library in NAMES}):
        notes.print_note(f"newest tried: {describe_tried(newer)}")


def find_version(library: str) -> str:
    """The version of `library` that is imported, or would be; "" if it is not known."""
    if library == "python":
        return platform.python_version()
    imported = getattr(sys.modules.get(library), "__version__", "")
    if isinstance(imported, str) and imported:
        return imported
    installed = _find_distribution(library)
    return "" if installed is None else installed.version


def is_newer(version: str, than: str) -> bool:
    return _parse_version(version) > _parse_version(than)


def _parse_version(text: str) -> tuple[int, ...]:
    """The numbers with which it begins: (2, 15, 1) for "2.15.1rc0"."""
    numbers = re.match(r"[\d.]*", text)
    return tuple(int(part) for part in numbers[0].split(".") if part) if numbers else ()
