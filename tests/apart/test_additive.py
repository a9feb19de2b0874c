"""Assignments of a step to shared variables become additions or moves in place, or ranks cannot share the step."""

import pytest

from matex_tf.apart import additive, variable_uses

STEPS = {
    "v.assign_add(x)": "MatexAdd",
    "v.assign(v + x)": "MatexAdd",
    "v.assign(x + v - 2 * x)": "MatexAdd",
    "v.assign(0.9 * v + x)": "MatexMove",
    "v.assign_sub((v - x) * 0.1)": "MatexMove",
    "v.assign(v * c + x * (1 - c))": "MatexMove",
    "v.scatter_sub(tf.IndexedSlices(x[:1], [2]))": "MatexAddRows",
    "v.assign(x)": "each batch assigns a new value to 'v'",
    "v.assign_add(x - v)": "each batch assigns a new value to 'v'",
    "v.assign(tf.maximum(v, x))": "each batch assigns a new value to 'v'",
    "v.assign(0.5 * v + tf.tanh(tf.reduce_sum(v)))": "each batch assigns a new value to 'v'",
    "v.assign_add(x * tf.reduce_sum(v))": "each batch assigns a new value to 'v'",
    "tf.cond(x[0] > 0, lambda: v.assign_add(x) + 0, lambda: v + 0)": "it changes 'v' in some steps only",
    "(before := v.read_value(), v.assign_add(x), own.assign(before))": "it uses the old value of 'v'",
    "(before := v[1:], v.assign_add(x), own.assign(tf.repeat(before, [1, 2])))": "it uses the old value of 'v'",
    "other.assign_add(x)": "it changes a variable that is not a weight of the model",
    "total.assign(total + x)": "",
    "total.assign_add(x)": "",
    "total.assign(tf.maximum(total, x))": "the metric variable 'total' is not a sum over batches",
    "total.assign_add(x - total)": "the metric variable 'total' is not a sum over batches",
    "total.assign(x)": "the metric variable 'total' is not a sum over batches",
    "own.assign(x)": "",
}


@pytest.mark.parametrize("step_text", STEPS)
def test_assignments(step_text):
    import tensorflow as tf

    v, total, own, other = (
        tf.Variable([1.0, 2, 3], trainable=False, name=name) for name in ("v", "total", "own", "other")
    )

    @tf.function(autograph=False)
    def step(x, c):
        eval(step_text, {"tf": tf, "v": v, "x": x, "c": c, "total": total, "own": own, "other": other})

    graph = step.get_concrete_function(tf.TensorSpec([3]), tf.TensorSpec([])).graph
    found = []

    @tf.function(autograph=False)
    def copied(*given):
        additions = additive.Additions([v], [v])
        here = tf.compat.v1.get_default_graph()
        additions.copy_step(additive.read_step(graph), [*given, *(here.capture(one) for one, _ in graph.captures)])
        found.append(additions.why_not or additive.find_obstacle(here, [v], [total], [own]))
        found.extend(op.type for op in here.get_operations() if op.type in variable_uses.ADDS)

    copied.get_concrete_function(tf.TensorSpec([3]), tf.TensorSpec([]))
    why, *kinds = found
    wanted = STEPS[step_text]
    if wanted in variable_uses.ADDS:
        assert (why, kinds) == ("", [wanted])
    else:
        assert why.replace(":0", "").startswith(wanted) and bool(why) == bool(wanted)


@pytest.mark.parametrize(
    "step_text, amounts",
    [
        ("v.assign(v + [0, 1])", [0, 1]),
        ("v.assign_add([0, 2])", [0, 2]),
        ("(v.assign_sub([0, 1]), v.assign_add([3, 0]))", [3, -1]),
        ("v.assign(v + [0, 1] + [1, 0])", None),  # TensorFlow does not fold the sum of the two
        ("v.assign_add(x)", None),
        ("v.assign(v * 2)", None),
    ],
)
def test_constant_amounts(step_text, amounts):
    import tensorflow as tf

    v = tf.Variable([7, 0])

    @tf.function(autograph=False)
    def step(x):
        eval(step_text, {"v": v, "x": x})

    found = additive.find_amounts(step.get_concrete_function(tf.TensorSpec([2], tf.int32)).graph, [v])
    assert [amount.tolist() for _, amount in found] == ([] if amounts is None else [amounts])
