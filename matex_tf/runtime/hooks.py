"""Hooks: functions of other libraries that matex_tf replaces. Each hook is checked when its module is imported.

A file with hooks has a `Table`. `Table.replace` decorates a function `make(original)` that returns the replacement:

    @HOOKS.replace("numpy.random", "default_rng", "ranks draw different numbers without a seed")
    def _wrap_default_rng(original): ...

`Table.install` arranges that a function is replaced once its library is imported. If the original is missing then, or
has other parameters, all ranks raise an error; for an optional hook, a note is printed.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.metadata
import inspect
import platform
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matex_tf import errors
from matex_tf.runtime import notes
from matex_tf.version import TRIED

Make = Callable[[Any], Any]  # takes the original, returns the replacement
Put = Callable[[Any, str, Make], None]  # as `put_function`
NAMES = {"tensorflow": "TensorFlow", "keras": "Keras"}
"""The libraries whose untested newer versions are reported, with their display names."""
_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)  # **kwargs and *args


def call_when_imported(module: str, act: Callable[[Any], object]) -> None:
    """Call `act(module)` when the module of this name is imported, or now if it already is."""
    import wrapt
    import wrapt.importer

    was_imported = module in sys.modules

    def act_on_import(imported_module: Any) -> None:
        try:
            act(imported_module)
        except errors.SetupError:
            if not was_imported:
                # A script that handles the error as a missing library gets it again at the next import.
                sys.modules.pop(module, None)
                # wrapt 1.14, which TensorFlow 2.15 needs, keeps an empty list for a module whose hooks it has called,
                # and takes the module as imported.
                wrapt.importer._post_import_hooks.pop(module, None)
                wrapt.register_post_import_hook(act_on_import, module)
            raise

    wrapt.register_post_import_hook(act_on_import, module)


def put_function(owner: Any, name: str, make: Make) -> None:
    """Replace `owner.name` by `make(original)`, which gets the original's name, docstring and signature.

    Does nothing if `make` returns the original.
    """
    # `getattr` of a class would return the function of a static method, not the static method.
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
    if attribute is not original:  # a property or static method again
        replacement = type(attribute)(replacement)
    setattr(owner, name, replacement)


@dataclass(eq=False)
class Hook:
    """A function, property, class or value of another library, and its replacement."""

    module: str
    name: str
    """The name within the module: "Model.fit"."""
    make: Make  # returns the replacement of the original
    if_missing: str  # the consequence if the hook is missing, for messages
    replacements: list[Any] = field(default_factory=list, repr=False)
    """The replacements made so far by all hooks of one declaration. Two module names may stand for the same function,
    which is replaced once.
    """
    takes: str = ""
    """Parameters of the original that `make` requires, in addition to the parameters that the replacement names."""
    since: str = ""
    until: str = ""
    """The hook applies to versions of the library from `since` on and before `until`; "": without this limit."""
    optional: bool = False  # the run is correct without the hook
    later: bool = False
    """The module may be imported later than the library, or never. Otherwise its absence is reported."""
    early: bool = False
    """The function is replaced once its module is imported, before the import of the library is complete."""
    when: Callable[[], bool] | None = None
    """Whether this rank needs the hook; called when the function is to be replaced. None: always."""
    put: Put = put_function  # the function that performs the replacement
    placed_in: Any = field(default=None, repr=False)  # the module object in which the function was last replaced

    @property
    def library(self) -> str:
        """The name of the library, such as "keras"; "python" for a module of Python."""
        top = self.module.partition(".")[0]
        return "python" if top in sys.stdlib_module_names else top

    def fits(self, version: str) -> bool:
        """Whether the hook applies to `version` of the library; an unknown version counts as the newest."""
        if not version:
            return not self.until
        numbers = _parse_version(version)
        is_before_end = not self.until or numbers < _parse_version(self.until)
        return numbers >= _parse_version(self.since) and is_before_end

    def describe_versions(self) -> str:
        """The range of versions in brackets, such as "(from 3, before 4)"; "" if there is none."""
        limits = [f"{word} {version}" for word, version in (("from", self.since), ("before", self.until)) if version]
        return f" ({', '.join(limits)})" if limits else ""

    def install(self) -> None:
        """Replace the function once its library is imported (see `early`), and check the hook then."""
        library = self.module.partition(".")[0]
        awaited_module = self.module if self.early else library
        # The module may be imported after the library.
        call_when_imported(awaited_module, lambda _: call_when_imported(self.module, self.put_in_place))
        call_when_imported(library, lambda _: self.check_module())

    def _is_due(self) -> bool:
        """Whether this rank needs the hook, for the version of the library."""
        return (self.when is None or self.when()) and self.fits(find_version(self.library))

    def put_in_place(self, module: Any) -> None:
        """Replace the function in `module`, once. Raises SetupError if a required hook does not fit."""
        if self.placed_in is module or not self._is_due():
            return
        *owner_path, name = self.name.split(".")
        try:
            owner = functools.reduce(getattr, owner_path, module)
        except AttributeError:
            owner = None
        try:
            if has_name(owner, name):
                self.put(owner, name, functools.partial(self._make_checked, takes_self(owner, name)))
            else:
                self._report(f"has no `{self.name}` in {self.module}")
        except errors.SetupError:
            raise
        except Exception as error:
            self._report(f"has another `{self.name}` in {self.module} ({error!r})", error)
        self.placed_in = module

    def _make_checked(self, is_method: bool, original: Any) -> Any:
        """The replacement. The original itself if it is one already, or if it does not fit an optional hook."""
        if any(original is replacement for replacement in self.replacements):
            return original
        replacement = self.make(original)
        if replacement is original:
            return original
        difference = describe_difference(original, replacement, self.takes.split(), is_method)
        if difference:
            self._report(f"has `{self.name}` in {self.module} {difference}")
            return original
        self.replacements.append(replacement)
        return replacement

    def check_module(self) -> None:
        """Check the hook after the import of its library. Raises SetupError, as `put_in_place` does."""
        if self.module in sys.modules:  # the import hook misses a module that a finder of the script has found
            self.put_in_place(sys.modules[self.module])
        elif not self._is_due():
            return
        elif not is_there(self.module):
            self._report(f"has no module {self.module}, of which `{self.name}` is replaced")
        elif not self.later:
            notes.print_note(f"{self.library} was imported without {self.module}: {self.if_missing}")

    def _report(self, defect: str, cause: Exception | None = None) -> None:
        """Raise SetupError for a `defect` of the library; for an optional hook, print a note."""
        if not self.optional:
            raise errors.SetupError(self._explain(defect)) from cause
        notes.print_note(self._explain(defect))

    def _explain(self, defect: str) -> str:
        version, newest = find_version(self.library), TRIED.get(self.library)
        text = f"{self.library} {version or '(of unknown version)'} {defect}. Without this hook {self.if_missing}."
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
            shared_options = {**self.options, **options, "replacements": []}
            places = [(module, name) for module in modules.split() for name in names.split()]
            self.hooks += [Hook(module, name, make, if_missing, **shared_options) for module, name in places]
            return make

        return declare

    def install(self) -> None:
        for hook in self.hooks:
            hook.install()


def has_name(owner: Any, name: str) -> bool:
    """Whether `owner` has `name` itself; for a class, not only from `object` or its metaclass, as with `__init__`."""
    if isinstance(owner, type):
        return any(name in vars(base) for base in owner.__mro__ if base is not object)
    return hasattr(owner, name)


def takes_self(owner: Any, name: str) -> bool:
    """Whether `owner.name` is a function or property of a class, whose first parameter is `self`."""
    return isinstance(owner, type) and not isinstance(inspect.getattr_static(owner, name), staticmethod)


def describe_difference(original: Any, replacement: Any, takes: Sequence[str] = (), is_method: bool = False) -> str:
    """How the parameters of `original` differ from the parameters that its `replacement` requires; "" if they fit.

    The replacement must name the first parameters in order: `f(x, *args, **kwargs)` fits `f(x, y)`. Without `*args` or
    `**kwargs` it must name all of them.

    Args:
        takes: further parameters that the original must have.
        is_method: whether the first parameter is `self`, which is not compared.
    """
    if isinstance(original, type) or isinstance(replacement, type):
        return ""
    try:
        names, is_original_variadic = list_parameters(original)
        required, is_replacement_variadic = list_parameters(replacement)
    except (TypeError, ValueError):
        return ""  # C code, or not a function
    if is_method:
        names, required = names[1:], required[1:]
    compared = names[: len(required)] if is_replacement_variadic else names
    if is_original_variadic:  # it accepts further parameters: compare only the parameters that both name
        compared, required, takes = compared[: len(required)], required[: len(compared)], ()
    if compared != required:
        return f"with the parameters {compared} in place of {required}"
    missing = [name for name in takes if name not in names]
    return f"without the parameter {missing[0]}" if missing else ""


def list_parameters(function: Any) -> tuple[list[str], bool]:
    """The names of the parameters, and whether there are also *args or **kwargs. `inspect.signature` would be slow."""
    unwrapped = inspect.unwrap(function, stop=lambda one: hasattr(one, "__signature__"))
    if isinstance(unwrapped, types.FunctionType) and not hasattr(unwrapped, "__signature__"):
        code = unwrapped.__code__
        names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        return names, bool(code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind not in _VARIADIC]
    return names, len(names) < len(parameters)


def is_there(module: str) -> bool:
    """Whether `module` can be imported, without importing it."""
    return module in sys.modules or _find_spec(module) is not None


def _find_spec(module: str) -> importlib.machinery.ModuleSpec | None:
    parent = module.rpartition(".")[0]
    search_path = None
    if parent in sys.modules:
        search_path = getattr(sys.modules[parent], "__path__", None) or ()
    elif parent:
        spec = _find_spec(parent)
        search_path = () if spec is None else spec.submodule_search_locations or ()
    return importlib.machinery.PathFinder.find_spec(module, search_path)


@functools.cache
def _find_distribution(library: str) -> importlib.metadata.Distribution | None:
    """The pip distribution that provides the library, such as `tensorflow_cpu`."""
    try:
        return importlib.metadata.distribution(library)
    except importlib.metadata.PackageNotFoundError:
        distribution_names = importlib.metadata.packages_distributions().get(library)  # slow
        return importlib.metadata.distribution(distribution_names[0]) if distribution_names else None


def _find_install_command(library: str) -> str:
    """The command that installs a release of `library`. A nightly build has no releases under its own name."""
    distribution = _find_distribution(library)
    if distribution is None:
        return f"pip install {library}"
    if ".dev" in distribution.version:
        return f"pip uninstall {distribution.name}; pip install {library}"
    return f"pip install {distribution.name}"


def list_newer(versions: Mapping[str, str]) -> list[str]:
    """The libraries that are newer than the newest tested ones, such as "Keras 3.16.0". `versions`: by library."""
    return [
        f"{name} {versions[library]}"
        for library, name in NAMES.items()
        if _parse_version(versions[library]) > _parse_version(TRIED[library])
    ]


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
    imported_version = getattr(sys.modules.get(library), "__version__", "")
    if isinstance(imported_version, str) and imported_version:
        return imported_version
    distribution = _find_distribution(library)
    return "" if distribution is None else distribution.version


def _parse_version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 15, 1) for "2.15.1rc0"."""
    match = re.match(r"[\d.]*", text)
    return tuple(int(part) for part in match[0].split(".") if part) if match else ()
