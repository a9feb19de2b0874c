"""The runs of a copy are put back into the function that calls them, before TensorFlow does it when that first runs.

TensorFlow puts an op for each argument and each result in between, which its optimizer has to remove again.
"""

from __future__ import annotations

from typing import Any

from matex_tf.rewrite.segments import CALLS, Run

_CONSTANT = "Const"


def inline_runs(function: Any) -> None:
    """In what TensorFlow runs of a ConcreteFunction, put the ops of runs in the place of their calls."""
    from tensorflow.python.eager import context

    graph = function.graph
    called = {one.get_attr("f").name for one in graph.get_operations() if one.type in CALLS}
    runs = {name: one for name, one in zip(called, map(graph._get_function, called)) if isinstance(one, Run)}
    if runs:
        definition = _Inlining(function.function_def, runs).definition
        context.context().remove_function(function.name)
        context.context().add_function_def(definition)


class _Inlining:
    """definition: the FunctionDef `given`, in which the calls of runs are replaced, which are known by their names."""

    def __init__(self, given: Any, runs: dict[str, Run]):
        from tensorflow.core.framework import function_pb2

        self.runs = {
            node.name: runs[node.attr["f"].func.name].cached_definition
            for node in given.node_def
            if node.op in CALLS and node.attr["f"].func.name in runs
        }
        self.definition = function_pb2.FunctionDef()
        self.definition.CopyFrom(given)
        del self.definition.node_def[:]
        self._used = {one.name for one in (*given.signature.input_arg, *given.node_def)}
        self._awaited = {one for node in given.node_def for one in node.input if one[0] == "^"}
        self._awaited.update(f"^{one}" for one in given.control_ret.values())
        self._numbers: dict[str, int] = {}
        self._constants: dict[str, Any] = {}
        self._results: dict[str, str] = {}  # by the results of calls, the outputs of ops that give them
        renamed = {name: self._name_nodes(name) for name in self.runs}
        for node in given.node_def:
            if node.name in self.runs:
                self._add_run(node, renamed[node.name])
            else:
                made = self.definition.node_def.add()
                made.CopyFrom(node)
                made.input[:] = map(self._find, node.input)
        for name, result in given.ret.items():
            self.definition.ret[name] = self._find(result)

    def _name_nodes(self, call: str) -> dict[str, str]:
        """The names here of the nodes of a run; of constants that are the same in several runs, one."""
        run, found = self.runs[call], dict[str, str]()
        for node in run.node_def:
            known = self._constants.get(node.name) if node.op == _CONSTANT and not node.input else None
            if known is not None and known == node:
                found[node.name] = node.name
                continue
            found[node.name] = name = self._find_name(node.name)
            if node.op == _CONSTANT and name == node.name:
                self._constants[name] = node
        for index, result in enumerate(run.signature.output_arg):
            name, at = run.ret[result.name].split(":", 1)
            self._results[f"{call}:output:{index}"] = f"{found[name]}:{at}"
        return found

    def _add_run(self, call: Any, names: dict[str, str]) -> None:
        run = self.runs[call.name]
        given = [self._find(one) for one in call.input]
        before = [one for one in given if one[0] == "^"]
        arguments = dict(zip((one.name for one in run.signature.input_arg), given))
        constants = {node.name for node in run.node_def if node.op == _CONSTANT}
        known: dict[str, tuple[str, bool]] = {}  # inputs here, and whether an op of the run makes them
        for node in run.node_def:
            name, waits = names[node.name], node.op != _CONSTANT
            if self._constants.get(name, node) is not node:
                continue  # another run has it
            made = self.definition.node_def.add()
            made.CopyFrom(node)
            made.name = name
            for index, one in enumerate(node.input):
                if one not in known:
                    of = _find_op(one)
                    here = arguments[one] if one in arguments else one.replace(of, names[of], 1)
                    known[one] = here, of not in arguments and of not in constants
                here, is_made = known[one]
                waits = waits and not is_made
                if here != one:
                    made.input[index] = here
            if waits:
                made.input.extend(before)
        if f"^{call.name}" in self._awaited:
            ends = run.control_ret.values() or set(map(_find_op, run.ret.values()))
            self.definition.node_def.add(name=call.name, op="NoOp", input=sorted(f"^{names[one]}" for one in ends))

    def _find(self, name: str) -> str:
        """What gives this tensor here."""
        return self._results.get(name, name)

    def _find_name(self, wanted: str) -> str:
        name = wanted
        while name in self._used:
            number = self._numbers[wanted] = self._numbers.get(wanted, 0) + 1
            name = f"{wanted}_{number}"
        self._used.add(name)
        return name


def _find_op(given: str) -> str:
    """The name of the op or argument that an input is of."""
    return given.lstrip("^").split(":", 1)[0]
