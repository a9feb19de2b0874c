"""Products of matrices: linear in each factor, so that weights multiply; a sum over the rows is partial."""

from __future__ import annotations

from matex_tf.analysis.placement import DERIVATION, PARTIAL, REPLICATED, Placement, make_partial, make_replicated
from matex_tf.analysis.rules.registry import FIGURE, FIXED, MEET, SIZES, Node, UnprovedError, need_fit, register_rule


def _multiply_figures(node: Node) -> Placement:
    """The placement of a product of figures."""
    if any(one.is_mixed or not one.is_figure for one in node.inputs):
        raise UnprovedError(SIZES)
    kinds = [one.kind for one in node.inputs]
    power = sum(one.power for one in node.inputs)
    if all(kind == REPLICATED for kind in kinds):
        return make_replicated(power)
    if kinds.count(PARTIAL) == 1 and kinds.count(REPLICATED) == len(kinds) - 1:
        return make_partial(power)
    return DERIVATION


@register_rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def multiply(node: Node) -> Placement:
    first, second = node.inputs
    if not (first.is_sharded or second.is_sharded):
        return _multiply_figures(node)
    names = ("transpose_a", "transpose_b") if node.type == "MatMul" else ("adj_x", "adj_y")
    swapped = [node.read_attribute(name) for name in names]
    ranks = [node.count_axes(0), node.count_axes(1)]
    # Each axis by its place from the end, rows of the result -2, its columns -1, and what is summed over 0.
    roles: list[int | None] = []
    for which, (one, rank, swap) in enumerate(zip((first, second), ranks, swapped)):
        if not one.is_sharded:
            roles.append(None)
            continue
        place = one.axis - rank
        if place < -2:
            roles.append(place)
            continue
        outer = (place == -2) != swap  # the first of the two last axes once it is turned
        roles.append((-2 if outer else 0) if which == 0 else (0 if outer else -1))
    power = first.power + second.power
    known = [role for role in roles if role is not None]
    if first.is_sharded and second.is_sharded:
        need_fit(first, second)
        if roles[0] != roles[1]:
            raise UnprovedError(MEET)
    else:
        other = 1 if first.is_sharded else 0
        if node.inputs[other].kind != REPLICATED or node.inputs[other].is_mixed:
            raise UnprovedError(FIGURE)
        shape, role = node.get_shape(other), known[0]
        if role == 0 or (role < -2 and len(shape) >= -role and shape[role] != 1):
            raise UnprovedError(FIXED)
    role = known[0]
    if role == 0:
        return make_partial(power)
    shard = first if first.is_sharded else second
    return shard._replace(power=power, axis=max(ranks) + role, zero=False)


@register_rule("Einsum")
def einsum(node: Node) -> Placement:
    if not any(one.is_sharded for one in node.inputs):
        return _multiply_figures(node)
    equation = node.read_attribute("equation")
    equation = equation.decode() if isinstance(equation, bytes) else equation
    left, output = equation.replace(" ", "").split("->")
    terms = left.split(",")
    labels = [_label_axes(term, node.count_axes(index)) for index, term in enumerate(terms)]
    sharded = [index for index, one in enumerate(node.inputs) if one.is_sharded]
    found = {labels[index][node.inputs[index].axis] for index in sharded}
    need_fit(*(node.inputs[index] for index in sharded))
    if len(found) > 1:
        raise UnprovedError(MEET)
    label = found.pop()
    for index, one in enumerate(node.inputs):
        if index in sharded:
            if labels[index].count(label) > 1:
                raise UnprovedError(MEET)
            continue
        if one.kind != REPLICATED or one.is_mixed:
            raise UnprovedError(FIGURE)
        if label in labels[index] and node.get_shape(index)[labels[index].index(label)] != 1:
            raise UnprovedError(FIXED)
    power = sum(one.power for one in node.inputs)
    made = _label_axes(output, node.op.outputs[0].shape.rank)
    if label not in made:
        return make_partial(power)
    return node.inputs[sharded[0]]._replace(power=power, axis=made.index(label), zero=False)


def _label_axes(term: str, rank: int | None) -> list[str]:
    """The label of each axis; those of an ellipsis are numbered from the end."""
    if "..." not in term:
        return list(term)
    if rank is None:
        raise UnprovedError(MEET)
    before, after = term.split("...")
    count = rank - len(before) - len(after)
    return [*before, *(f"...{index - count}" for index in range(count)), *after]


@register_rule("SparseTensorDenseMatMul")
def sparse_multiply(node: Node) -> Placement:
    if all(one.is_same for one in node.inputs):
        return make_replicated()
    *sparse, dense = node.inputs
    if (
        all(one.is_same for one in sparse)
        and dense.is_sharded
        and dense.axis == 1
        and not node.read_attribute("adjoint_b")
    ):
        return dense
    raise UnprovedError(MEET)


@register_rule("Cross")
def cross(node: Node) -> Placement:
    first, second = node.inputs
    if not (first.is_sharded or second.is_sharded):
        return _multiply_figures(node)
    need_fit(first, second)
    if first.axis != second.axis or first.axis == node.count_axes(0) - 1:
        raise UnprovedError(MEET)
    return first._replace(power=first.power + second.power)
