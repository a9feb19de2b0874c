"""Hooks: a name, a module or a parameter that has gone is told, by an error or a line; each hook is dropped once."""

import functools
import importlib
import importlib.machinery
import itertools
import sys
import types

import pytest

import launch
from matex_tf import SetupError, patches
from matex_tf.runtime import hooks, notes
from matex_tf.version import TRIED

NUMBERS = itertools.count()
ALL = [hook for _, hook in patches.list_hooks()]


@pytest.fixture
def said(monkeypatch):
    """The lines that are said."""
    lines = []
    monkeypatch.setattr(notes, "print_note", lines.append)
    return lines


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Makes a library of files, by the name of each, which is imported by a name that no other test has."""
    made = []

    def make(**files):
        name = f"hooked{next(NUMBERS)}"
        for file, text in {"__init__": "", **files}.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{file}.py").write_text(text.replace("LIBRARY", name))
        made.append(name)
        return name

    monkeypatch.syspath_prepend(tmp_path)
    yield make
    for name in [name for name in sys.modules if name.split(".")[0] in made]:
        del sys.modules[name]


def ask_all(monkeypatch, said, act):
    """What is told where `act` is done to each hook: its text, by hook."""
    told = {}
    for hook in ALL:
        version = hook.since or f"{int(hook.until or 10) - 1}.9"
        monkeypatch.setattr(hooks, "find_version", lambda _, version=version: version)
        monkeypatch.setattr(hook, "when", None)
        monkeypatch.setattr(hook, "placed_in", None)
        said.clear()
        try:
            act(hook)
        except SetupError as error:
            assert not hook.optional, hook
            said.append(str(error))
        (told[hook],) = said
        for words in (hook.library, hook.name, hook.module, version, hook.if_missing, TRIED.get(hook.library, "")):
            assert words in told[hook], told[hook]
        assert hook.optional or "MATEX_DISABLE=1" in told[hook]
    return told


def test_each_hook_whose_name_is_missing_is_told(monkeypatch, said):
    def drop_name(hook):
        module, owner = types.ModuleType(hook.module), None
        for part in hook.name.split(".")[:-1]:
            owner = type(part, (), {})
            setattr(module, part, owner)
        hook.put_in_place(module)

    assert len(ask_all(monkeypatch, said, drop_name)) > 100
    assert {hook.library for hook in ALL} >= {"tensorflow", "keras", "tf_keras", "h5py", "netCDF4", "pyarrow", "python"}


def test_each_hook_whose_module_is_missing_is_told(monkeypatch, said):
    monkeypatch.setattr(hooks, "is_there", lambda module: False)

    def drop_module(hook):
        with monkeypatch.context() as patched:
            patched.delitem(sys.modules, hook.module, raising=False)
            hook.check_module()

    ask_all(monkeypatch, said, drop_module)


def test_a_hook_of_another_version_is_not_asked_for(monkeypatch, said):
    for hook in ALL:
        if hook.since or hook.until:
            monkeypatch.setattr(hooks, "find_version", lambda _, hook=hook: hook.until or "1.0")
            hook.put_in_place(types.ModuleType(hook.module))
    assert not said


@pytest.mark.timeout(120)
def test_each_hook_fits_the_libraries_that_are_installed():
    """In a child, whose libraries are replaced by what stands in their place under ranks."""
    script = """
import importlib, sys
from matex_tf import SetupError, patches
from matex_tf.observe import check_recorder
from matex_tf.runtime import hooks, notes

lines = []
notes.print_note = lines.append
check_recorder._recorder = check_recorder.Recorder(1, "")
for _, hook in patches.list_hooks():
    top = hook.module.partition(".")[0]
    hook.when = None
    if hook.library == "python" or not hooks.is_there(top) or not hook.fits(hooks.find_version(hook.library)):
        continue
    importlib.import_module(top)
    if hook.later and hooks.is_there(hook.module):
        importlib.import_module(hook.module)
    try:
        hook.check_module()
        hook.put_in_place(sys.modules[hook.module])
    except SetupError as error:
        lines.append(str(error))
    if hook.placed_in is None:
        lines.append(f"{hook} stands nowhere")
print("".join(f"\\nTOLD: {line}" for line in lines), "all were asked")
"""
    result = launch.run(1, script).check()
    assert "all were asked" in result.stdout and "TOLD" not in result.stdout, result.stdout


def test_a_hook_of_pythons_own_functions_fits():
    """These are not replaced here, where all tests need them."""
    for hook in ALL:
        if hook.library == "python":
            *path, name = hook.name.split(".")
            owner = functools.reduce(getattr, path, importlib.import_module(hook.module))
            original, is_method = getattr(owner, name), hooks.takes_self(owner, name)
            assert hooks.describe_difference(original, hook.make(original), hook.takes.split(), is_method) == "", hook


def test_versions_newer_than_the_newest_tried_are_named_in_one_line(monkeypatch, said):
    versions = dict(TRIED)
    monkeypatch.setattr(hooks, "find_version", versions.get)
    hooks.note_newer()
    assert not said
    versions.update(tensorflow="99.0.0-dev20260101", keras="98.1.0rc0")
    hooks.note_newer()
    (line,) = said
    for words in ("TensorFlow 99.0.0-dev20260101", "Keras 98.1.0rc0", TRIED["tensorflow"], TRIED["keras"]):
        assert words in line, line


@pytest.mark.parametrize("installed, version, told", [
    ("tensorflow_cpu", "99.0", "`pip install tensorflow_cpu=="),
    ("tf_nightly", "99.0.0.dev20260101", "`pip uninstall tf_nightly; pip install tensorflow=="),
])  # fmt: skip
def test_the_install_command_names_a_package_that_has_the_release(monkeypatch, installed, version, told):
    """A nightly build is a package of its own, without the releases."""
    found = types.SimpleNamespace(name=installed, version=version)
    monkeypatch.setattr(hooks, "_find_distribution", lambda library: found)
    hook = next(hook for hook in ALL if hook.library == "tensorflow" and not hook.optional)
    with pytest.raises(SetupError, match="without matex_tf") as error:
        hook._report("has another function")
    assert f"{told}{TRIED['tensorflow']}`" in str(error.value)


def takes_two(first, second):
    pass


def takes_more(first, second, third=None):
    pass


def takes_any(first, **others):
    pass


def takes_other(first, third):
    pass


def test_parameters_are_compared():
    assert hooks.describe_difference(takes_two, lambda first, second: None) == ""
    assert hooks.describe_difference(takes_two, lambda first, *rest, **named: None, ["second"]) == ""
    assert hooks.describe_difference(takes_any, lambda first, second, **named: None, ["third"]) == ""
    assert hooks.describe_difference(len, lambda obj: None) == ""
    assert "third" in hooks.describe_difference(takes_more, lambda first, second: None)
    assert "third" in hooks.describe_difference(takes_other, lambda first, second, *rest: None)
    assert "third" in hooks.describe_difference(takes_two, lambda *rest, **named: None, ["third"])
    assert hooks.describe_difference(takes_two, lambda self, second: None, is_method=True) == ""


def wrap(original):
    return lambda *args, **kwargs: ["ours", original(*args, **kwargs)]


def test_what_is_replaced_keeps_its_kind(library):
    name = library(
        inner="""
def call():
    "Says."
    return "call"

class Owner:
    @staticmethod
    def give():
        return "give"

    @property
    def size(self):
        return "size"

    def method(self):
        return "method"
"""
    )
    table = hooks.Table(later=True)
    table.replace(f"{name}.inner", "call Owner.give Owner.size Owner.method", "nothing is tested")(wrap)
    table.install()
    importlib.import_module(name)
    inner = importlib.import_module(f"{name}.inner")
    assert inner.call() == ["ours", "call"] and inner.call.__doc__ == "Says."
    assert inner.Owner.give() == ["ours", "give"] and inner.Owner().size == ["ours", "size"]
    assert inner.Owner().method() == ["ours", "method"]


def test_the_first_parameter_is_compared_unless_it_is_that_of_a_method(library):
    name = library(
        inner="""
import types

class Owner:
    @staticmethod
    def give(first):
        return first

    def method(this):
        return "method"

space = types.SimpleNamespace(give=Owner.give)
"""
    )
    inner = importlib.import_module(f"{name}.inner")
    hooks.Hook(f"{name}.inner", "Owner.method", lambda original: lambda self: "ours", "").put_in_place(inner)
    assert inner.Owner().method() == "ours"
    for place in ("Owner.give", "space.give"):
        with pytest.raises(SetupError, match=r"\['first'\] in place of \['other'\]"):
            hooks.Hook(f"{name}.inner", place, lambda original: lambda other: other, "").put_in_place(inner)


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize(
    "module, lacks", [("moved", "module LIBRARY.trainer"), ("trainer", "`fit` in LIBRARY.trainer")]
)
def test_what_has_gone_is_told_at_each_import(library, module, lacks, is_early):
    name = library(**{module: "", "__init__": f"import LIBRARY.{module}"})
    table = hooks.Table(early=is_early)
    table.replace(f"{name}.trainer", "fit", "fit is not sharded")(wrap)
    table.install()
    for _ in range(2):  # by a script that takes the first for a missing library
        with pytest.raises(SetupError, match=f"has no {lacks}.* fit is not sharded".replace("LIBRARY", name)):
            importlib.import_module(name)


def test_a_module_that_is_not_imported_with_its_library_is_said(library, said):
    name = library(trainer="def fit(): pass", lazy="def load(): pass")
    table = hooks.Table()
    table.replace(f"{name}.trainer", "fit", "fit is not sharded")(wrap)
    table.replace(f"{name}.lazy", "load", "what is loaded is lost", later=True)(wrap)
    table.install()
    importlib.import_module(name)
    assert len(said) == 1 and f"{name}.trainer" in said[0] and "fit is not sharded" in said[0]
    assert f"{name}.lazy" not in sys.modules
    assert importlib.import_module(f"{name}.lazy").load() == ["ours", None]


def test_each_hook_of_a_function_is_put_in_place_once(library):
    name = library(trainer="def fit(): pass", __init__="from LIBRARY import trainer\nfrom LIBRARY.trainer import fit")
    for table in (hooks.Table(early=True), hooks.Table(early=True)):
        table.replace(f"{name}.trainer", "fit", "fit is not sharded")(wrap)
        table.install()
    made = importlib.import_module(name)
    assert made.fit() == made.trainer.fit() == ["ours", ["ours", None]]


def test_a_module_that_another_finder_has_found_is_hooked(library, monkeypatch):
    name = library(trainer="def fit(): pass", __init__="from LIBRARY import trainer")
    table = hooks.Table(early=True)
    table.replace(f"{name}.trainer", "fit", "fit is not sharded")(wrap)
    table.install()

    class Finder:
        @staticmethod
        def find_spec(found, path=None, target=None):
            return importlib.machinery.PathFinder.find_spec(found, path) if found == f"{name}.trainer" else None

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert importlib.import_module(name).trainer.fit() == ["ours", None]


def test_a_hook_that_cannot_be_put_in_place_is_told(library):
    def fail(original):
        return original.no_such_thing

    name = library(__init__="def call(): pass")
    table = hooks.Table()
    table.replace(name, "call", "nothing is tested")(fail)
    table.install()
    with pytest.raises(SetupError, match=f"{name} .* has another `call` in {name}"):
        importlib.import_module(name)


@pytest.mark.timeout(120)
def test_a_renamed_module_of_keras_ends_the_run(tmp_path):
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text('__version__ = "4.0.1"\n')
    script = "import matex_tf\ntry:\n    import keras\nexcept Exception:\n    import keras\nprint('went on')\n"
    result = launch.run(2, script, env={"PYTHONPATH": str(tmp_path)}, cold=True)
    assert result.returncode != 0 and "went on" not in result.output, result.output
    for words in ("keras 4.0.1", "keras.src.", f"pip install keras=={TRIED['keras']}", "MATEX_DISABLE=1", "rank "):
        assert words in result.output, result.output
