"""Random numbers: what has the rows of the batch is drawn for each slice; anything else is the same on all ranks."""

from __future__ import annotations

from matex_tf.analysis.placement import SHARDED, Placement, make_replicated
from matex_tf.analysis.rules.registry import MEET, Node, UnprovedError, find_rows_place, list_entries, register_rule

_OF_SEED = {"StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg", "StatelessRandomGetAlg"}


DRAWS = (
    "RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt", "StatelessRandomUniform",
    "StatelessRandomNormal", "StatelessTruncatedNormal", "StatelessRandomUniformInt", "StatelessRandomUniformV2",
    "StatelessRandomNormalV2", "StatelessTruncatedNormalV2", "StatelessRandomUniformIntV2",
    "StatelessRandomUniformFullIntV2",
)  # fmt: skip


@register_rule(*DRAWS)
def draw(node: Node) -> Placement:
    place = find_rows_place(node.inputs[0])
    if place is None:
        # Of a seed that each rank has for itself every rank has other numbers.
        node.need_same(*range(1, len(node.inputs)))
        return make_replicated()
    return Placement(SHARDED, axis=place, unit=list_entries(node.inputs[0])[place].unit, drawn=True)


@register_rule("RandomGamma", "StatelessRandomGammaV2", "StatelessRandomGammaV3", "RandomPoissonV2",
    "StatelessRandomPoisson",
      "StatelessRandomBinomial", "Multinomial", "StatelessMultinomial", "StatefulRandomBinomial")  # fmt: skip
def draw_by_parameters(node: Node) -> Placement:
    parameters = node.inputs[0]
    if node.type in ("Multinomial", "StatelessMultinomial") and parameters.is_sharded and parameters.axis == 0:
        if parameters.power:
            raise UnprovedError(MEET)
        return parameters
    if all(one.is_same for one in node.inputs):
        return make_replicated()
    raise UnprovedError("its shape or its parameters are of the rows")


@register_rule(*_OF_SEED)
def keys(node: Node) -> list[Placement]:
    node.need_same(*range(len(node.inputs)))
    return [make_replicated()] * len(node.op.outputs)


@register_rule("RngReadAndSkip")
def next_keys(node: Node) -> Placement:
    """The state of a generator, which each rank advances by as much."""
    node.need_same(*range(len(node.inputs)))
    return make_replicated()


@register_rule("RandomShuffle")
def shuffle(node: Node) -> Placement:
    node.need_same(0)
    return make_replicated()
