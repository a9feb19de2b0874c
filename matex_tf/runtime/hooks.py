"""Hooks: functions of other libraries that matex_tf replaces. Each hook is checked when its module is imported.

A file with hooks has a `Table`; `Table.replace` decorates a function `make(original)` that returns the replacement. If
the original is missing or has other parameters, all ranks raise an error; for an optional hook, a note is printed.
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
"""The libraries whose untested newer versions are reported, with their display names."""
_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)

APIS = " ".join(
    ("tensorflow", *(f"tensorflow{inner}.compat.v{version}" for inner in ("._api.v2", "") for version in "12"))
)
"""The modules with TensorFlow's public functions. The last two are created when one of them is imported by name."""


def call_when_imported(module: str, act: Callable[[Any], object]) -> None:
    """Call `act(module)` when the module is imported, or now if it already is."""
    import wrapt

    was_imported = module in sys.modules

    def run(imported: Any) -> None:
        try:
            act(imported)
        except errors.SetupError:
            if not was_imported:
                # A script that handles the error as a missing library gets it again at the next import.
                sys.modules.pop(module, None)
                wrapt.register_post_import_hook(run, module)
            raise

    wrapt.register_post_import_hook(run, module)


def put_function(owner: Any, name: str, make: Make) -> None:
    """Replace `owner.name` by `make(original)`, which keeps the original's name, docstring and signature."""
    attribute = vars(owner)[name] if isinstance(owner, type) and name in vars(owner) else getattr(owner, name)
    original: Any = attribute
    if isinstance(attribute, property):
        original = attribute.fget
    elif isinstance(attribute, staticmethod):
        original = attribute.__func__
    replacement = make(original)
    if replacement is original:
        return
    if isinstance(replacement, type):
        for field_name in ("__module__", "__qualname__", "__doc__"):
            setattr(replacement, field_name, getattr(original, field_name))
    elif callable(original) and callable(replacement):
        replacement = functools.wraps(original)(replacement)
    setattr(owner, name, replacement if attribute is original else type(attribute)(replacement))


@dataclass(eq=False)
class Hook:
    """A function, property, class or value of another library, and its replacement."""

    module: str
    name: str
    """The name within the module: "Model.fit"."""
    make: Make
    if_missing: str
    """The consequence if the hook is missing, for messages."""
    replacements: list[Any] = field(default_factory=list, repr=False)
    """The replacements made by the hooks of one declaration; two of its modules may be the same module."""
    takes: str = ""
    """Parameters of the original that `make` requires, in addition to those that the replacement names."""
    since: str = ""
    until: str = ""
    """The hook applies to versions of the library from `since` on and before `until`."""
    optional: bool = False
    """The run is correct without the hook."""
    later: bool = False
    """The module may be imported later than the library, or never."""
    early: bool = False
    """The function is replaced before the rest of the library imports it from its module."""
    when: Callable[[], bool] | None = None
    """Whether this rank needs the hook; called when it is installed."""
    put: Put = put_function
    """The function that performs the replacement."""
    placed_in: Any = field(default=None, repr=False)
    """The module in which the function was replaced."""

    @property
    def library(self) -> str:
        top = self.module.partition(".")[0]
        return "python" if top in sys.stdlib_module_names else top

    def fits(self, version: str) -> bool:
        """Whether the hook applies to `version` of the library; an unknown version counts as the newest."""
        if not version:
            return not self.until
        found = _parse_version(version)
        return _parse_version(self.since) <= found and not (self.until and found >= _parse_version(self.until))

    def describe_versions(self) -> str:
        """The range of versions in brackets, such as "(from 3, before 4)"; "" if there is none."""
        limits = [f"{word} {version}" for word, version in (("from", self.since), ("before", self.until)) if version]
        return f" ({', '.join(limits)})" if limits else ""

    def install(self) -> None:
        """Install the hook when its library is imported, or, for an `early` hook, its module; now if that is already
        imported.
        """
        top = self.module.partition(".")[0]
        first = self.module if self.early else top
        call_when_imported(first, lambda _: call_when_imported(self.module, self.put_in_place))
        call_when_imported(top, lambda _: self.check_module())

    def _is_due(self) -> bool:
        return (self.when is None or self.when()) and self.fits(find_version(self.library))

    def put_in_place(self, module: Any) -> None:
        """Replace the function in `module`, once. Raises SetupError if a required hook does not fit."""
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
                self._report(f"has no `{self.name}` in {self.module}")
        except errors.SetupError:
            raise
        except Exception as error:
            self._report(f"has another `{self.name}` in {self.module} ({error!r})", error)
        self.placed_in = module

    def _make_checked(self, original: Any) -> Any:
        """The replacement; the original itself if it is a replacement already, or has other parameters."""
        if any(original is replacement for replacement in self.replacements):
            return original
        replacement = self.make(original)
        if replacement is original:
            return original
        difference = find_lacking(original, replacement, self.takes.split(), "." in self.name)
        if difference:
            self._report(f"has `{self.name}` in {self.module} {difference}")
            return original
        self.replacements.append(replacement)
        return replacement

    def check_module(self) -> None:
        """Check the hook after the import of its library. Raises SetupError, like `put_in_place`."""
        if self.module in sys.modules:  # the import hook misses a module that a finder of the script has found
            self.put_in_place(sys.modules[self.module])
        elif not self._is_due():
            return
        elif not is_there(self.module):
            self._report(f"has no module {self.module}, of which `{self.name}` is replaced")
        elif not self.later:
            notes.print_note(f"{self.library} was imported without {self.module}: {self.if_missing}")

    def _report(self, what: str, cause: Exception | None = None) -> None:
        if not self.optional:
            raise errors.SetupError(self._explain(what)) from cause
        notes.print_note(self._explain(what))

    def _explain(self, what: str) -> str:
        found, newest = find_version(self.library), TRIED.get(self.library)
        text = f"{self.library} {found or '(of unknown version)'} {what}. Without this hook {self.if_missing}."
        if newest:
            text += f" The newest {self.library} tried is {newest}: `{_find_install_command(self.library)}=={newest}`"
            text += "." if self.optional else ", or set MATEX_DISABLE=1 to run the script without matex_tf."
        elif not self.optional:
            text += f" Install an older {self.library}, or set MATEX_DISABLE=1 to run the script without matex_tf."
        return text


class Table:
    """The hooks of one file, in the order of installation, with common `options`."""

    def __init__(self, **options: Any):
        self.hooks: list[Hook] = []
        self.options = options

    def __iter__(self) -> Iterator[Hook]:
        return iter(self.hooks)

    def replace(self, modules: str, names: str, if_missing: str, **options: Any) -> Callable[[Make], Make]:
        """Declare that `make(original)` replaces each of `names` in each of `modules`.

        `modules` and `names` are separated by spaces; `if_missing` and `options` are fields of `Hook`.
        """

        def declare(make: Make) -> Make:
            shared = {**self.options, **options, "replacements": []}
            places = [(module, name) for module in modules.split() for name in names.split()]
            self.hooks += [Hook(module, name, make, if_missing, **shared) for module, name in places]
            return make

        return declare

    def install(self) -> None:
        for hook in self.hooks:
            hook.install()


def has_name(owner: Any, name: str) -> bool:
    """Whether `owner` has `name` itself; for a class, not only from `object` or its metaclass, as with `__init__`."""
    if isinstance(owner, type):
        return any(name in vars(kind) for kind in owner.__mro__ if kind is not object)
    return hasattr(owner, name)


def find_lacking(original: Any, replacement: Any, takes: Sequence[str] = (), is_method: bool = False) -> str:
    """How the parameters of `original` differ from the parameters that its `replacement` requires; "" if they fit.

    The replacement names the first parameters in order, and all of them if it takes no others.
    """
    if isinstance(original, type) or isinstance(replacement, type):
        return ""
    try:
        original_parameters, replacement_parameters = (
            list(inspect.signature(one).parameters.values())[is_method:] for one in (original, replacement)
        )
    except (TypeError, ValueError):
        return ""  # C code, or not a function
    names = [one.name for one in original_parameters if one.kind not in _VARIADIC]
    wanted = [one.name for one in replacement_parameters if one.kind not in _VARIADIC]
    is_original_variadic = len(names) < len(original_parameters)
    is_replacement_variadic = len(wanted) < len(replacement_parameters)
    compared = names[: len(wanted)] if is_replacement_variadic else names
    if is_original_variadic:  # it accepts further parameters: compare only the parameters that both name
        compared, wanted, takes = compared[: len(wanted)], wanted[: len(compared)], ()
    if compared != wanted:
        return f"with the parameters {compared} in place of {wanted}"
    missing = [name for name in takes if name not in names]
    return f"without the parameter {missing[0]}" if missing else ""


def is_there(module: str) -> bool:
    """Whether `module` can be imported, without importing it."""
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
    """The pip distribution that provides the library, such as `tensorflow_cpu`."""
    try:
        return importlib.metadata.distribution(library)
    except importlib.metadata.PackageNotFoundError:
        named = importlib.metadata.packages_distributions().get(library)  # slow
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
    """The libraries with their versions in `versions`, such as "Keras 3.16.0", if newer than the newest tested ones."""
    return [f"{name} {versions[one]}" for one, name in NAMES.items() if is_newer(versions[one], TRIED[one])]


def describe_tried(newer: Sequence[str]) -> str:
    """The newest tested versions, and the newer ones from `list_newer`."""
    text = ", ".join(f"{name} {TRIED[library]}" for library, name in NAMES.items())
    return f"{text}; newer here: {', '.join(newer)}, not tried yet" if newer else text


def note_newer() -> None:
    """Print a note about versions of TensorFlow and Keras that are newer than the newest tested ones."""
    if newer := list_newer({library: find_version(library) for library in NAMES}):
        notes.print_note(f"newest tried: {describe_tried(newer)}")


def find_version(library: str) -> str:
    """The version of `library` that is imported or installed; "" if unknown."""
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
    """The leading numbers of a version: (2, 15, 1) for "2.15.1rc0"."""
    numbers = re.match(r"[\d.]*", text)
    return tuple(int(part) for part in numbers[0].split(".") if part) if numbers else ()
