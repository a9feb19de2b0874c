"""Parses the space file, which says what `matex tune` varies (YAML; see docs/tune.md):

    objective: {minimize: val_loss}
    search:
      --lr: {log: [1e-5, 0.1]}
      --optimizer: [adam, sgd]

Errors give the line and suggest the closest valid word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import NoReturn

import yaml

from matex_tf.arguments import describe_unknown
from matex_tf.tune.objective import Objective
from matex_tf.tune.space import OFF, ON, Choice, Condition, Number, Parameter, Space

_TOP = ("objective", "search", "files")
_RANGES = {"float": (False, False), "int": (False, True), "log": (True, False), "log_int": (True, True)}
"""For each kind of range: whether it is logarithmic, and whether its values are integers."""
_CHOICE, _FLAG, _WHEN, _ELSE = "choice", "flag", "when", "otherwise"
_KINDS = (*_RANGES, _CHOICE, _FLAG)
_OBJECTIVE = ("minimize", "maximize", "regex", "take")
_TAKE_VALUES = ("last", "best")
# How the script receives a parameter, by its name: --lr or -l as an option, $LR as an environment variable, and lr in
# files with the placeholder {{lr}}.
_NAME = re.compile(r"--?[A-Za-z0-9][\w.-]*|\$[A-Za-z_]\w*|[A-Za-z_]\w*")
_COMMENT = re.compile(r"\s#.*")


class SpaceError(ValueError):
    """The space file is invalid."""


@dataclass(frozen=True)
class Specification:
    """The contents of a space file."""

    space: Space
    objective: Objective
    files: tuple[str, ...] = ()  # files with placeholders
    texts: Mapping[str, str] = field(default_factory=dict, compare=False)
    """For messages about changes: the text of the file for each parameter."""
    part_texts: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The same for `objective` and for `files`; apart from `texts`, because a parameter may have such a name."""


def read_space(text: str, name: str) -> Specification:
    """Parse the text of the file `name`.

    Raises:
        SpaceError: with the line, and the expected and given text.
    """
    try:
        top_node = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = f"{name}, line {mark.line + 1}" if mark else name
        raise SpaceError(f"{position}: {getattr(error, 'problem', None) or error}. It is read as YAML") from None
    return _Reader(name).read_specification(top_node, text)


class _Reader:
    """Reads the YAML nodes of the file `name`. All methods raise SpaceError for invalid nodes."""

    def __init__(self, name: str):
        self.name = name

    def read_specification(self, top_node: yaml.Node | None, text: str) -> Specification:
        """Read the whole file, of which `text` is the text; `top_node` is None for an empty file."""
        if top_node is None:
            raise SpaceError(f"{self.name}: it is empty. It begins with `search:`, and a line for each parameter")
        part_nodes = dict(self._list_members(top_node, "the file", _TOP))
        if "search" not in part_nodes:
            problem = "there is no `search:`, with a line for each parameter, such as --lr: {log: [1e-5, 0.1]}"
            self._refuse_node(top_node, problem)
        parameter_nodes = dict(self._list_members(part_nodes["search"], "search"))
        if not parameter_nodes:
            self._refuse_node(part_nodes["search"], "search: there is no parameter")
        parameters = {name: self._read_parameter(name, node) for name, node in parameter_nodes.items()}
        for parameter in parameters.values():
            self._check_condition(parameter, parameter_nodes[parameter.name], parameters)
        files = self._read_one_or_more("files", part_nodes["files"]) if "files" in part_nodes else ()
        self._check_placeholders(parameters, files)
        objective = self._read_objective(part_nodes["objective"]) if "objective" in part_nodes else Objective()
        texts = {name: _cut_text(text, node) for name, node in parameter_nodes.items()}
        part_texts = {name: _cut_text(text, node) for name, node in part_nodes.items()}
        part_texts.setdefault("objective", "{minimize: val_loss}")
        return Specification(
            Space(self._sort_parameters(parameters, parameter_nodes)), objective, files, texts, part_texts
        )

    # Parameters

    def _read_parameter(self, name: str, node: yaml.Node) -> Parameter:
        """Read a parameter: `flag`, a list of choices, or a mapping of a kind, such as {log: [1e-5, 0.1]}, optionally
        with `when`, as {optimizer: sgd}, and `otherwise`, the text of a placeholder where `when` does not hold.
        """
        if not _NAME.fullmatch(name):
            self._refuse_node(
                node, f"{name}: expected a flag (--lr), a variable of the environment ($LR), or the name of a "
                "placeholder in one of files (lr)"
            )  # fmt: skip
        if isinstance(node, yaml.ScalarNode):
            if node.value != _FLAG:
                expected = "expected a list of choices, or a range as {log: [1e-5, 0.1]}"
                self._refuse_node(node, f"{name}: {expected}; given {node.value!r}")
            members = {_FLAG: node}
        elif isinstance(node, yaml.SequenceNode):
            members = {_CHOICE: node}
            choices = self._read_texts(name, node)
            if len(choices) == 2 and all(map(_is_number, choices)):
                numbers = ", ".join(choices)
                alternatives = f"{{float: [{numbers}]}}, {{int: [{numbers}]}} or {{choice: [{numbers}]}}"
                self._refuse_node(node, f"{name}: [{numbers}] may be a range or two choices: write {alternatives}")
        else:
            members = dict(self._list_members(node, name, (*_KINDS, _WHEN, _ELSE)))
        kinds = [kind for kind in members if kind in _KINDS]
        if len(kinds) != 1:
            self._refuse_node(node, f"{name}: expected one of {', '.join(_KINDS)}; given {', '.join(kinds) or 'none'}")
        kind = kinds[0]
        when = self._read_condition(name, members[_WHEN]) if _WHEN in members else ()
        otherwise = self._read_text(f"{name}: {_ELSE}", members[_ELSE]) if _ELSE in members else None
        needs_otherwise = bool(when) and _is_placeholder(name)
        if otherwise is not None and not needs_otherwise:
            explanation = f"`{_ELSE}` applies to placeholders with `{_WHEN}`; flags and variables are left out"
            self._refuse_node(members[_ELSE], f"{name}: {explanation}")
        if needs_otherwise and otherwise is None:
            self._refuse_node(node, f"{name}: its text where `{_WHEN}` does not hold is missing: add `{_ELSE}: TEXT`")
        if kind == _FLAG:
            if not name.startswith("-"):
                flag_name = f"--{name.lstrip('$')}"
                self._refuse_node(node, f"{name}: only an option of the command line, as {flag_name}, may be a flag")
            return Choice(name, (OFF, ON), True, when, otherwise)
        if kind == _CHOICE:
            return Choice(name, self._read_texts(name, members[kind]), False, when, otherwise)
        low, high = self._read_range(name, kind, members[kind])
        return Number(name, low, high, *_RANGES[kind], when, otherwise)

    def _read_range(self, name: str, kind: str, node: yaml.Node) -> tuple[float, float]:
        is_logarithmic, is_whole = _RANGES[kind]
        if not isinstance(node, yaml.SequenceNode) or len(node.value) != 2:
            self._refuse_node(node, f"{name}: expected {kind}: [LEAST, MOST]")
        low, high = (self._read_number(name, item, is_whole) for item in node.value)
        if not low < high:
            self._refuse_node(node, f"{name}: expected the least first, then the most; given {low:g} and {high:g}")
        if is_logarithmic and low <= 0:
            self._refuse_node(node, f"{name}: {kind} needs numbers above 0; given {low:g}")
        return low, high

    def _read_number(self, name: str, node: yaml.Node, is_whole: bool) -> float:
        text = self._read_text(name, node)
        # YAML parses 1e-5, without a dot, as text.
        if not _is_number(text) or not math.isfinite(float(text)):
            self._refuse_node(node, f"{name}: expected a number; given {text!r}")
        if is_whole and not float(text).is_integer():
            self._refuse_node(node, f"{name}: expected a whole number; given {text}")
        return float(text)

    # Conditions

    def _read_condition(self, name: str, node: yaml.Node) -> Condition:
        subject = f"{name}: {_WHEN}"
        members = self._list_members(node, subject)
        return tuple((other_name, self._read_one_or_more(subject, values)) for other_name, values in members)

    def _check_condition(self, parameter: Parameter, node: yaml.Node, parameters: Mapping[str, Parameter]) -> None:
        """Check that each condition of the parameter names another one with choices, and some of these choices."""
        subject = f"{parameter.name}: {_WHEN}"
        other_parameters = {
            name: other_parameter for name, other_parameter in parameters.items() if other_parameter != parameter
        }
        for name, values in parameter.when:
            if name not in other_parameters:
                self._refuse_node(node, f"{subject}: {describe_unknown('parameter', name, other_parameters)}")
            other_parameter = other_parameters[name]
            if not isinstance(other_parameter, Choice):
                self._refuse_node(node, f"{subject}: {name} is a range; a condition is on choices or a flag")
            for value in values:
                if value not in other_parameter.choices:
                    self._refuse_node(
                        node, f"{subject}: {name}: {describe_unknown('choice', value, other_parameter.choices)}"
                    )

    def _sort_parameters(
        self, parameters: Mapping[str, Parameter], nodes: Mapping[str, yaml.Node]
    ) -> tuple[Parameter, ...]:
        """Sort parameters, so that each comes after the parameters of its condition."""
        sorter = TopologicalSorter(dict.fromkeys(parameters, ()))  # of names, in the order of the file
        for name, parameter in parameters.items():
            sorter.add(name, *(other_name for other_name, _ in parameter.when))
        try:
            return tuple(parameters[name] for name in sorter.static_order())
        except CycleError as error:
            name = next(name for name in parameters if name in error.args[1])
            self._refuse_node(nodes[name], f"{name}: its condition depends, through others, on itself")

    # The other parts

    def _check_placeholders(self, names: Iterable[str], files: tuple[str, ...]) -> None:
        """Check that there are placeholders and files for them, or neither."""
        placeholders = [name for name in names if _is_placeholder(name)]
        if placeholders and not files:
            placeholder = placeholders[0]
            raise SpaceError(
                f"{self.name}: {placeholder} is a placeholder, {{{{{placeholder}}}}}, but no file that contains it is "
                f"named: add files: [config.yaml]. A flag is written --{placeholder}, a variable ${placeholder}"
            )
        if files and not placeholders:
            raise SpaceError(f"{self.name}: files are named, but no searched parameter is a placeholder in them")

    def _read_objective(self, node: yaml.Node) -> Objective:
        members = dict(self._list_members(node, "objective", _OBJECTIVE))
        texts = {name: self._read_text(f"objective: {name}", value_node) for name, value_node in members.items()}
        if "minimize" in texts and "maximize" in texts:
            self._refuse_node(node, "objective: minimize or maximize, not both")
        if texts.get("take", "last") not in _TAKE_VALUES:
            problem = describe_unknown("word for take", texts["take"], _TAKE_VALUES)
            self._refuse_node(members["take"], f"objective: {problem}")
        if "regex" in texts:
            try:
                groups = re.compile(texts["regex"]).groups
            except re.error as error:
                self._refuse_node(members["regex"], f"objective: regex {texts['regex']!r}: {error}")
            if groups > 1:
                problem = "regex has several groups (); only one may hold the number. Use (?:) for others"
                self._refuse_node(members["regex"], f"objective: {problem}")
        elif not {"minimize", "maximize"} & texts.keys():
            problem = "expected minimize, maximize or regex, as objective: {minimize: val_loss}"
            self._refuse_node(node, f"objective: {problem}")
        name = texts.get("maximize") or texts.get("minimize") or "value"
        return Objective(name, "maximize" in texts, texts.get("regex", ""), texts.get("take", "last"))

    # Nodes

    def _list_members(
        self, node: yaml.Node, subject: str, known_names: Iterable[str] = ()
    ) -> Iterator[tuple[str, yaml.Node]]:
        """The members of a mapping. Raises SpaceError for duplicates and, if there are `known_names`, for others."""
        if not isinstance(node, yaml.MappingNode):
            self._refuse_node(node, f"{subject}: expected `name: value` lines")
        seen_names = set()
        for key, value in node.value:
            name = self._read_text(subject, key)
            if name in seen_names:
                self._refuse_node(key, f"{subject}: {name} is given twice")
            if known_names and name not in known_names:
                self._refuse_node(key, f"{subject}: {describe_unknown('word', name, known_names)}")
            seen_names.add(name)
            yield name, value

    def _read_one_or_more(self, name: str, node: yaml.Node) -> tuple[str, ...]:
        """A list of texts, or a single text."""
        return self._read_texts(name, node) if isinstance(node, yaml.SequenceNode) else (self._read_text(name, node),)

    def _read_texts(self, name: str, node: yaml.Node) -> tuple[str, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._refuse_node(node, f"{name}: expected a list, as [adam, sgd]")
        texts = tuple(self._read_text(name, item) for item in node.value)
        if len(set(texts)) < len(texts):
            duplicate = next(text for text in texts if texts.count(text) > 1)
            self._refuse_node(node, f"{name}: {duplicate} is given twice")
        return texts

    def _read_text(self, name: str, node: yaml.Node) -> str:
        """A scalar as written in the file: a script receives `1e-3` or `True` literally."""
        if not isinstance(node, yaml.ScalarNode):
            self._refuse_node(node, f"{name}: expected a single value")
        return str(node.value)

    def _refuse_node(self, node: yaml.Node, problem: str) -> NoReturn:
        raise SpaceError(f"{self.name}, line {node.start_mark.line + 1}: {problem}")


def _cut_text(text: str, node: yaml.Node) -> str:
    """The part of `text` for a node, on one line, without comments."""
    return " ".join(_COMMENT.sub("", text[node.start_mark.index : node.end_mark.index]).split())


def _is_placeholder(name: str) -> bool:
    return name[0] not in "-$"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
