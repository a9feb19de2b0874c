"""Small functions of rows of a batch, an op type each, for tests of what ranks make of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import tensorflow as tf

N = 5
_random = np.random.default_rng(7)


def _f(*shape: int) -> np.ndarray:
    return _random.normal(size=[N, *shape])


ARRAYS = {
    "x": _f(3), "y": _f(3), "c": _f(), "z": _f(4, 3), "square": _f(3, 3) + 3 * np.eye(3), "image": _f(6, 6, 2),
    "volume": _f(4, 4, 4, 2), "p": _random.uniform(0.1, 0.9, [N, 3]), "ids": _random.integers(0, 3, [N], np.int32),
    "codes": _random.integers(0, 5, [N, 3], np.int32), "more": _random.integers(1, 5, [N, 3], np.int32),
    "flags": np.array([True, False, True, True, False]), "words": np.array([b"1", b"a b ", b"Zz", b"4", b""], object),
    "digits": np.array([b"1", b"2.5", b"-3", b"4", b"0"], object), "turned": _f(3, N).transpose(0, 2, 1)[:, :, :3],
    "floats": _f(6, 6, 3).astype(np.float32), "codes64": _random.integers(0, 5, [N], np.int64),
    "raws": np.array([b"abcd", b"efgh", b"ijkl", b"mnop", b"qrst"], object),
    "transforms": np.tile([1, 0, 1, 0, 1, 0, 0, 0], (N, 1)).astype(np.float32),
}  # fmt: skip
"""What the arguments of a case are, by their names: rows of a batch."""

W = _random.normal(size=[3, 4])
TABLE = {"lookup": lambda: tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1, 2], tf.int64), tf.constant([5.0, 6.0, 7.0])),
        0.0)}  # fmt: skip


def raw(kind: str, *inputs, **attributes):
    """The op of this type by itself."""
    function = getattr(tf.raw_ops, kind)
    if kind in ("ComplexAbs", "Real", "Imag", "Complex"):  # else of single precision
        attributes.setdefault("Tout", tf.complex128 if kind == "Complex" else tf.float64)
    return function(**dict(zip(inspect.signature(function).parameters, inputs)), **attributes)


def count(x):
    return tf.cast(tf.shape(x)[0], x.dtype)


@tf.function
def _nested(x, y):
    return tf.tanh(x) @ W, tf.reduce_sum(y, 0)


@tf.function
def _read(x):
    return x @ VARIABLES[0]


@tf.function
def _masked(x, flags):
    return tf.boolean_mask(x, flags)


def unknown(number):
    """The number, which is not known before the graph runs."""
    return tf.cast(tf.reduce_sum(VARIABLES[0]) * 0, tf.int32) + number


def _first_of_unknown_entries(z):
    longer, shorter = (tf.gather(z, tf.range(unknown(length)), axis=1) for length in (4, 2))
    flat = tf.reshape(longer, [tf.shape(z)[0] * tf.shape(longer)[1], 3])
    count = tf.shape(z)[0] * tf.shape(shorter)[1]
    return flat[:count], tf.slice(flat, [0, 0], [count, 3]), tf.gather(flat, tf.range(count)), tf.gather_nd(
        flat, tf.range(count)[:, tf.newaxis])  # fmt: skip


def _listed_shapes(x):
    shapes = tf.TensorArray(tf.int32, 2, infer_shape=False).write(0, tf.shape(x)).write(1, tf.shape(x) * 2)
    return shapes.stack()[0], shapes.concat(), shapes.gather([1]), tf.zeros(shapes.read(0))


def _list_no_shapes(x):
    shapes = tf.TensorArray(tf.int32, 0, dynamic_size=True)
    _, shapes = tf.while_loop(lambda turn, _: turn < unknown(0), lambda turn, made: (
        turn + 1, made.write(turn, tf.shape(x))), [0, shapes])  # fmt: skip
    return shapes.stack()


def _add_lists(x, y):
    """Lists of extremes and of shapes, added up as gradients are; and zeros in place of shapes."""
    empty = [raw("EmptyTensorList", [-1], 1, element_dtype=dtype) for dtype in (tf.float64, tf.int32)]
    extremes = [raw("TensorListPushBack", empty[0], tf.reduce_max(one, 0)) for one in (x, y)]
    shapes = [raw("TensorListPushBack", empty[1], tf.shape(one)) for one in (x, y)]
    made = raw("AddN", extremes), raw("AddN", shapes), raw("ZerosLike", shapes[0])
    return [raw("TensorListGetItem", one, 0, [3 if dtype == tf.float64 else 2], element_dtype=dtype)
            for one, dtype in zip(made, (tf.float64, tf.int32, tf.int32))]  # fmt: skip


def _compare_pairs(c):
    """How far the distances of all pairs are from their means."""
    distances = tf.abs(c[:, tf.newaxis] - c)
    return tf.reduce_sum(tf.square(distances - tf.reduce_mean(distances, 0) + tf.cast(tf.shape(c)[0], c.dtype)))


def _twice(x, body):
    return tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, body(a)), [0, x])[1]


def _recurrent(z):
    """As the RNN layers do it, time by time."""
    steps = tf.transpose(z, [1, 0, 2])
    taken = tf.TensorArray(tf.float64, 4).unstack(steps)
    made = tf.TensorArray(tf.float64, 4)

    def turn(time, state, made):
        state = tf.tanh(taken.read(time) + state)
        return time + 1, state, made.write(time, state)

    _, last, made = tf.while_loop(lambda time, *_: time < 4, turn, [0, tf.zeros([tf.shape(z)[0], 3], z.dtype), made])
    return last, tf.transpose(made.stack(), [1, 0, 2])


def _listed(x):
    made = tf.TensorArray(tf.float64, 0, dynamic_size=True, clear_after_read=False).write(0, x).write(1, x * 2)
    held = raw("TensorListPushBack", raw("EmptyTensorList", [-1, 3], 2, element_dtype=tf.float64), x)
    held = raw("TensorListPushBack", held, x + 1)
    left, last = raw("TensorListPopBack", held, [-1, 3], element_dtype=tf.float64)
    shape = raw("TensorListElementShape", left, shape_type=tf.int32)
    alike = raw("TensorListPushBack", raw("EmptyTensorList", shape, 1, element_dtype=tf.float64), x)
    return made.stack(), last, raw("TensorListLength", left), raw(
        "TensorListPopBack", alike, shape, element_dtype=tf.float64)[1]  # fmt: skip


def _branches(*bodies):
    spec = tf.TensorSpec([None, 3], tf.float64)
    return [tf.function(body).get_concrete_function(spec) for body in bodies]


def _variables(x, ids):
    held, table = VARIABLES
    return x @ held, tf.gather(table, ids), tf.gather_nd(table, ids[:, tf.newaxis]), tf.gather(table, [0, 1])


VARIABLES = tf.Variable(W), tf.Variable(_random.normal(size=[4, 2]))


def each(kinds: str, make: Callable[[str], Callable]) -> list[tuple[str, Callable]]:
    return [(kind, make(kind)) for kind in kinds.split()]


def _pooled(kind, rows, size):
    return [raw(kind, rows, ksize=size, strides=size, padding=padding) for padding in ("SAME", "VALID")]


def _reduced(kind, z):
    return raw(kind, z, 1), raw(kind, z, [1, 2], keep_dims=True), raw(kind, tf.transpose(z, [1, 0, 2]), [0])


SINGLE = [
    *each("ComplexAbs Real Imag Conj FFT IFFT", lambda kind: lambda x, y: raw(kind, tf.complex(x, y))),
    *each("""Abs Asinh Atan BesselI0e BesselI1e Ceil Cos Cosh Elu Erf Erfc Exp Expm1 Floor Identity Inv IsFinite IsInf
          IsNan LeakyRelu Neg PreventGradient Reciprocal Relu Relu6 Rint Round Selu Sigmoid Sign Sin Sinh Snapshot
          Softplus Softsign Square StopGradient Tan Tanh ZerosLike OnesLike""", lambda kind: lambda x: raw(kind, x)),
    *each("Acos Asin Atanh Digamma Erfinv Lgamma Log Log1p Ndtri Rsqrt Sqrt Spence Expint Dawsn FresnelCos FresnelSin",
          lambda kind: lambda p: raw(kind, p)),
    *each("""AddV2 Add Sub Mul RealDiv Div DivNoNan MulNoNan Maximum Minimum SquaredDifference Equal NotEqual Greater
          GreaterEqual Less LessEqual Atan2 Xlogy Xdivy Xlog1py FloorDiv FloorMod Mod Complex""",
          lambda kind: lambda p, x: (raw(kind, p, x), raw(kind, x, tf.constant(W[:, 0])))),
    *each("ApproximateEqual NextAfter", lambda kind: lambda p, x: raw(kind, p, x)),
    *each("Pow Igamma Igammac Zeta", lambda kind: lambda p: raw(kind, p + 1, p + 2)),
    *each("""EluGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad SoftplusGrad
          SoftsignGrad SqrtGrad TanhGrad""", lambda kind: lambda x, y: raw(kind, x, y)),
    *each("BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift TruncateDiv TruncateMod FloorDiv FloorMod Div",
          lambda kind: lambda codes, more: raw(kind, codes, more)),
    *each("StringLength StringLower StringUpper StringStrip", lambda kind: lambda words: raw(kind, words)),
    *each("AvgPool MaxPool", lambda kind: lambda image: _pooled(kind, image, [1, 2, 2, 1])),
    *each("AvgPool3D MaxPool3D",
          lambda kind: lambda volume: _pooled(kind, tf.cast(volume, tf.float32), [1, 2, 2, 2, 1])),
    *each("Sum Mean Max Min Prod EuclideanNorm", lambda kind: lambda z: _reduced(kind, z)),
]  # fmt: skip
"""Op types of which a case is the op itself."""

K2, K3 = _random.normal(size=[3, 3, 2, 4]), _random.normal(size=[2, 2, 2, 2, 3])
PADDINGS = (("SAME", []), ("VALID", []), ("EXPLICIT", [0, 0, 1, 2, 2, 1, 0, 0]))


def _transposed(image):
    shape = tf.shape(image)
    kernel = _random.normal(size=[3, 3, 5, 2])
    return [tf.nn.conv2d_transpose(image, kernel, [shape[0], size, size, 5], 2, padding)
            for padding, size in (("SAME", 12), ("VALID", 13))] + [
                raw("Conv2DBackpropInput", [12, 12], kernel, image, strides=[1, 2, 2, 1], padding="SAME")]  # fmt: skip


def _filters(image):
    made = tf.nn.conv2d(image, K2, 1, "SAME")
    flat = tf.nn.depthwise_conv2d(image, K2[..., :1], [1, 1, 1, 1], "SAME")
    return (
        raw("Conv2DBackpropFilter", image, [3, 3, 2, 4], made, strides=[1] * 4, padding="SAME"),
        raw("DepthwiseConv2dNativeBackpropFilter", image, [3, 3, 2, 1], flat, strides=[1] * 4, padding="SAME"),
    )


def _volumes(volume):
    made = tf.nn.conv3d(volume, K3, [1] * 5, "SAME")
    shape = tf.shape(volume)
    return (
        raw("Conv3DBackpropInputV2", shape, K3, made, strides=[1] * 5, padding="SAME"),
        raw("Conv3DBackpropFilterV2", volume, [2, 2, 2, 2, 3], made, strides=[1] * 5, padding="SAME"),
        raw("Conv", volume, K3, strides=[1] * 5, padding="SAME"),
    )


def _pool_gradients(image, volume):
    size, sizes = [1, 2, 2, 1], [1, 2, 2, 2, 1]
    most, mean = tf.nn.max_pool2d(image, 2, 2, "SAME"), tf.nn.avg_pool2d(image, 2, 2, "SAME")
    volume = tf.cast(volume, tf.float32)
    deep, flat = tf.nn.max_pool3d(volume, 2, 2, "SAME"), tf.nn.avg_pool3d(volume, 2, 2, "SAME")
    return (
        raw("MaxPoolGrad", image, most, mean, ksize=size, strides=size, padding="SAME"),
        raw("MaxPoolGradV2", image, most, mean, size, size, padding="SAME"),
        raw("AvgPoolGrad", tf.shape(image), mean, ksize=size, strides=size, padding="SAME"),
        raw("MaxPool3DGrad", volume, deep, flat, ksize=sizes, strides=sizes, padding="SAME"),
        raw("AvgPool3DGrad", tf.shape(volume), flat, ksize=sizes, strides=sizes, padding="SAME"),
    )


def _matrices(square, z):
    lower = tf.linalg.band_part(square, -1, 0)
    positive = square @ tf.linalg.matrix_transpose(square) + tf.eye(3, dtype=tf.float64)
    return (
        tf.linalg.inv(square),
        tf.linalg.det(square),
        tf.linalg.slogdet(square),
        tf.linalg.cholesky(positive),
        tf.linalg.solve(square, tf.transpose(z, [0, 2, 1])),
        tf.linalg.triangular_solve(lower, square),
        tf.linalg.diag(z),
        tf.linalg.diag_part(square),
        tf.linalg.set_diag(square, z[:, 0]),
        tf.abs(tf.linalg.qr(square)[1]),
        tf.linalg.svd(square, compute_uv=False),
        tf.linalg.eigh(positive)[0],
    )


def _draws(x):
    shape, seed = tf.shape(x), tf.constant([1, 2])
    key, counter = raw("StatelessRandomGetKeyCounter", seed)
    alg = raw("StatelessRandomGetAlg")
    raw("StatelessRandomGetKeyCounterAlg", seed)
    made = [raw(kind, shape, seed, dtype=tf.float64) for kind in ("StatelessRandomUniform", "StatelessRandomNormal",
                                                                  "StatelessTruncatedNormal")]  # fmt: skip
    made += [
        raw(kind, shape, key, counter, alg, dtype=tf.float64)
        for kind in ("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2")
    ]
    made += [
        raw(kind, shape, dtype=tf.float64) for kind in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal")
    ]
    made += [raw("StatelessRandomUniformInt", shape, seed, 0, 5), raw("RandomUniformInt", shape, 0, 5),
             raw("StatelessRandomUniformIntV2", shape, key, counter, alg, 0, 5),
             raw("StatelessRandomUniformFullIntV2", shape, key, counter, alg, dtype=tf.int32)]  # fmt: skip
    return made


def _drawn_for_rows(x, image):
    """Of several entries for each row, so that ranks begin between two values of the counter, too."""
    key, counter = raw("StatelessRandomGetKeyCounter", tf.constant([1, 2]))
    return [raw(kind, tf.shape(rows), key, counter, raw("StatelessRandomGetAlg"), dtype=dtype)
            for kind in ("StatelessRandomUniformV2", "StatelessRandomNormalV2")
            for rows in (x, image) for dtype in (tf.float32, tf.float64)]  # fmt: skip


def _drawn_once(x):
    """A single number for the rows of a batch, which may have a fixed number of rows."""
    return x * tf.random.stateless_uniform([], [1, 2], dtype=tf.float64)


def _fixed_draws(x):
    shape, seed, rate = tf.constant([2]), tf.constant([1, 2]), tf.constant([1.5, 2.0])
    key, counter = raw("StatelessRandomGetKeyCounter", seed)
    alg = raw("StatelessRandomGetAlg")
    made = [tf.random.stateless_gamma(shape, seed, rate), tf.random.stateless_poisson(shape, seed, rate, tf.float64),
            raw("StatelessRandomGammaV2", shape, seed, rate), raw("StatelessRandomGammaV3", shape, key, counter, alg,
                rate),
            tf.random.stateless_binomial(shape, seed, [3.0, 4.0], 0.5), raw("RandomGamma", shape, rate),
            raw("RandomPoissonV2", shape, rate), raw("RandomShuffle", rate)]  # fmt: skip
    drawn = tf.random.categorical(tf.nn.log_softmax(x), 4), raw("StatelessMultinomial", x, 4, seed)
    return [*made, *drawn, GENERATOR.normal([2]), GENERATOR.binomial([2], 3.0, [0.5, 0.2])]


GENERATOR = tf.random.Generator.from_seed(3)


def _images(floats):
    factor = tf.constant(0.7)
    return (
        tf.image.adjust_contrast(floats, 0.7),
        tf.image.adjust_hue(floats, 0.1),
        tf.image.adjust_saturation(floats, 2),
        tf.image.rgb_to_hsv(tf.nn.sigmoid(floats)),
        tf.image.hsv_to_rgb(tf.nn.sigmoid(floats)),
        floats * factor,
        *(tf.image.resize(floats, [4, 5], kind) for kind in ("bilinear", "nearest", "bicubic", "area", "lanczos3")),
    )


def _quantized(floats):
    fake = raw("FakeQuantWithMinMaxArgs", floats), raw("FakeQuantWithMinMaxVars", floats, -1.0, 1.0)
    return (
        *fake,
        raw("QuantizeAndDequantizeV2", floats, -1.0, 1.0, range_given=True),
        raw("QuantizeAndDequantizeV3", floats, -1.0, 1.0, 8, range_given=True),
        raw("LRN", floats),
    )


def _normalized(floats):
    ones = tf.ones([3])
    return [raw(kind, floats, ones, ones / 2, ones / 3, ones * 2, is_training=False)[0]
            for kind in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")]  # fmt: skip


def _numbers_of(ids, codes):
    weights = tf.cast(ids, tf.float64)
    return (
        raw("Bincount", ids, 3, weights),
        raw("DenseBincount", ids, 3, weights),
        raw("DenseBincount", ids, 3, []),
        raw("DenseBincount", codes, 5, tf.cast(codes, tf.float64)),
        raw("DenseBincount", codes, 5, tf.constant([], tf.float64), binary_output=True),
    )


def _looked_up(codes64, p):
    with tf.init_scope():
        table = TABLE["made"] = TABLE.get("made") or TABLE["lookup"]()
    edges = tf.constant([0.2, 0.5, 0.7], tf.float64)
    rows = tf.sort(tf.concat([p, p], 1))
    return (
        table.lookup(codes64),
        raw("LowerBound", edges[tf.newaxis], p[:, 0][tf.newaxis]),
        tf.searchsorted(rows, p, side="right"),
    )


def _sparse(x):
    sparse = tf.sparse.SparseTensor([[0, 1], [1, 2]], tf.constant([1.0, 2.0], tf.float64), [2, 3])
    return tf.sparse.sparse_dense_matmul(sparse, tf.transpose(x))


def _parted(x, z, y):
    both = tf.concat([x, y], 0)
    one, other = tf.split(both * 2, 2)
    n = tf.shape(x)[0]
    return one, other - x, both[:n], both[n:], tf.split(z, [1, 3], 1), tf.split(z, 3, -1), tf.split(tf.shape(z), 3)


def _padded(z):
    return (
        tf.pad(z, [[0, 0], [1, 0], [0, 2]]),
        tf.pad(z, [[0, 0], [1, 0], [0, 2]], constant_values=3.0),
        tf.pad(z, [[0, 0], [1, 1], [0, 2]], "REFLECT"),
    )


def _spread(image):
    spread = raw("SpaceToBatchND", image, [2, 3], [[0, 0], [0, 0]])
    return spread, raw("BatchToSpaceND", tf.tanh(spread), [2, 3], [[0, 0], [0, 0]])


def _transformed(floats, transforms):
    one = tf.constant([[1, 0, 1, 0, 1, 2, 0, 0]], tf.float32)
    return [raw("ImageProjectiveTransformV3", floats, how, [6, 6], 0.5, interpolation="BILINEAR")
            for how in (one, transforms)]  # fmt: skip


def label_sequences(image, floats, more, ids):
    """Six times, five labels and a blank; of each row one to three labels, made of rows or known to all ranks."""
    logits = tf.transpose(image[..., 0], [1, 0, 2])
    mine = tf.sparse.from_dense(tf.where(more[:, :1] + more < 6, more, [1, 0, 0]))
    fixed = tf.sparse.from_dense(tf.constant(ARRAYS["more"]))
    made = [raw("CTCLoss", logits, one.indices, one.values, 5 + ids // 2)[0] for one in (mine, fixed)]
    losses = tf.nn.ctc_loss(mine, floats[..., 0], None, 5 + ids // 2, logits_time_major=False, blank_index=-1)
    gradients = [*(tf.gradients(one, image)[0] for one in made), tf.gradients(losses, floats)[0]]
    return made, losses, gradients


CASES: list[tuple[str, Callable]] = [
    *SINGLE,
    ("Acosh", lambda p: tf.acosh(p + 1)), ("Invert", lambda codes: raw("Invert", codes)),
    ("Bitcast", lambda x: tf.bitcast(x, tf.uint8)), ("Bucketize", lambda x: raw("Bucketize", x, boundaries=[0.0, 1.0])),
    ("AsString", lambda codes: tf.strings.as_string(codes)), ("LogicalNot", lambda flags: ~flags),
    ("LogicalAnd LogicalOr", lambda flags, c: (flags & (c > 0), flags | (c > 0))),
    ("StringToHashBucketFast StringToHashBucketStrong StringToHashBucket", lambda words: (
        raw("StringToHashBucketFast", words, num_buckets=7), raw("StringToHashBucket", words, num_buckets=7),
        raw("StringToHashBucketStrong", words, num_buckets=7, key=[1, 2]))),
    ("StaticRegexReplace StaticRegexFullMatch", lambda words: (
        raw("StaticRegexReplace", words, pattern="a", rewrite="b"), raw("StaticRegexFullMatch", words, pattern="a.*"))),
    ("StringToNumber", lambda digits: tf.strings.to_number(digits)),
    ("DecodeRaw", lambda raws: tf.io.decode_raw(raws, tf.uint8)),
    ("Polygamma", lambda p: tf.math.polygamma(tf.ones_like(p), p)),
    ("ClipByValue Betainc", lambda p: (raw("ClipByValue", p, np.float64(0.2), np.float64(0.6)),
                                       tf.math.betainc(p, p + 1, p / 2))),
    ("CheckNumerics CheckNumericsV2", lambda x: (tf.debugging.check_numerics(x, "x"),
                                                 raw("CheckNumericsV2", x, message="x"))),
    ("IdentityN", lambda x, y: tf.identity_n([x, y])), ("AddN", lambda x, y: tf.add_n([x, y, x])),
    ("Cast", lambda x, flags: (tf.cast(x, tf.int32), tf.cast(flags, tf.float64), tf.cast(x, tf.bool),
                               tf.cast(tf.reduce_sum(x, 0), tf.float32), tf.cast(tf.reduce_sum(x), tf.int32))),
    ("Select SelectV2", lambda x, y, flags, c: (
        raw("Select", flags, x, y), raw("Select", x > 0, x, y), tf.where(flags[:, tf.newaxis], x, 0.0),
        tf.where(c > 0, c, 1.0), raw("Select", tf.constant(True), x, y),
        tf.where(True, tf.reduce_sum(x), tf.reduce_sum(y)))),
    # shapes
    ("ZerosLike Shape", lambda x, z: (
        tf.zeros_like(x[:1]), tf.ones_like(x[0]), tf.ones_like(x[0:1]), tf.zeros_like(z[-1:, 0]), tf.ones_like(x[-1]),
        tf.shape(x[:1]))),
    ("Const Shape Size Rank ShapeN", lambda x, z: (
        tf.shape(z), tf.size(z), raw("Rank", z), raw("ShapeN", [x, z]), tf.cast(tf.shape(x)[0], tf.float64),
        tf.size(tf.boolean_mask(x, x[:, 0] > 0)), tf.shape(tf.boolean_mask(x, x[:, 0] > 0))[0])),
    ("Fill Range", lambda x: (tf.zeros([tf.shape(x)[0], 2]), tf.fill([2, tf.shape(x)[0]], 3.0), tf.range(4),
                              tf.fill([2], 1.0 / count(x)), tf.range(tf.shape(x)[0]))),
    ("Reshape", lambda z, x: (
        tf.reshape(z, [-1, 3]), tf.reshape(z, [tf.shape(z)[0], 4, 3]), tf.reshape(z, [tf.shape(z)[0], -1]),
        tf.reshape(z, [1, tf.shape(z)[0], 12]), tf.reshape(z, [-1, 2, 2, 3]), tf.reshape(z, [-1]),
        tf.reshape(x, [tf.shape(x)[0], 1, 3]), tf.reshape(tf.reshape(z, [-1, 3]), [-1, 4, 3]) + z,
        tf.reshape(tf.transpose(z, [1, 0, 2]), [4, -1]), tf.reshape(tf.concat([z, z], 0), [-1, 12]),
        tf.reshape(z, tf.concat([tf.shape(z)[:-1], [1, 3]], 0)), tf.reshape(tf.reduce_sum(x, 0), [3, 1]),
        tf.reshape(z, [tf.shape(z)[0], tf.shape(z)[1] * 3]))),
    ("ExpandDims Squeeze EnsureShape Transpose ConjugateTranspose BroadcastTo Tile", lambda x, z: (
        tf.expand_dims(x, 0), tf.expand_dims(x, -1), tf.squeeze(x[:, :1], 1), tf.ensure_shape(x, [None, 3]),
        tf.transpose(z, [2, 0, 1]), raw("ConjugateTranspose", tf.complex(z, z), [1, 0, 2]),
        tf.broadcast_to(x[:, tf.newaxis], [tf.shape(x)[0], 4, 3]), tf.broadcast_to(W[0], [tf.shape(x)[0], 4]),
        tf.tile(x, [1, 2]), tf.tile(W[:1], [tf.shape(x)[0], 2]), tf.tile(x[tf.newaxis], [2, 1, 1]))),
    # arrays
    ("Pack Unpack ConcatV2", lambda x, y, z: (
        tf.stack([x, y]), tf.stack([x, y], -1), tf.unstack(z, axis=1), tf.unstack(tf.transpose(x)), tf.concat([x, y],
            1),
        tf.concat([x, y], 0), tf.stack([tf.reduce_sum(x), tf.reduce_sum(y)]), tf.concat([x, tf.zeros_like(y)], 0))),
    ("Split SplitV", _parted), ("Pad PadV2 MirrorPad", _padded),
    ("Cumsum Cumprod CumulativeLogsumexp ReverseV2 Roll ReverseSequence", lambda z, ids: (
        tf.cumsum(z, 1), tf.math.cumprod(z, 2), tf.math.cumulative_logsumexp(z, 1), tf.reverse(z, [1]), tf.roll(z, 1,
            1),
        tf.reverse_sequence(z, ids + 1, 1, 0), tf.cumsum(z / count(z), 1))),
    ("SpaceToBatchND BatchToSpaceND", _spread),
    ("""MatrixDiagV3 MatrixDiagPartV3 MatrixBandPart MatrixSetDiagV3 MatrixInverse Cholesky MatrixDeterminant
     LogMatrixDeterminant MatrixTriangularSolve MatrixSolve SelfAdjointEigV2 Qr Svd""", _matrices),
    ("RFFT IRFFT FFT2D IFFT2D RFFT2D IRFFT2D", lambda z: (
        tf.signal.rfft(z), tf.signal.irfft(tf.signal.rfft(z)), tf.signal.fft2d(tf.complex(z, z)),
        tf.signal.ifft2d(tf.complex(z, z)), tf.signal.rfft2d(z), tf.signal.irfft2d(tf.signal.rfft2d(z)))),
    ("PlaceholderWithDefault", lambda x: x + tf.compat.v1.placeholder_with_default(np.ones(3), [3])),
    # products
    ("MatMul BatchMatMulV2", lambda x, y, z: (
        x @ W, tf.matmul(x, y, transpose_a=True), tf.matmul(W, x, transpose_a=True, transpose_b=True), z @ W,
        tf.matmul(z, z, transpose_b=True), tf.reduce_sum(x, 0)[tf.newaxis] @ W, (x / count(x)) @ W,
        tf.matmul(x / count(x), y, transpose_a=True))),
    ("BatchMatMul BatchMatMulV3", lambda z: (raw("BatchMatMul", z, z, adj_y=True),
                                             raw("BatchMatMulV3", z, z, adj_y=True, Tout=tf.float64))),
    ("Einsum", lambda x, y, z: (
        tf.einsum("ij,jk->ik", x, W), tf.einsum("ij,ik->jk", x, y), tf.einsum("btd,bsd->bts", z, z),
        tf.einsum("...d,dk->...k", z, W), tf.einsum("ij,ij->", x, y), tf.einsum("ij->ji", x), tf.einsum("bd,btd->bt",
            x, z),
        tf.einsum("abc,cd->bad", z, W))),
    ("Cross", lambda x, y: tf.linalg.cross(x, y)), ("SparseTensorDenseMatMul", _sparse),
    # reductions
    ("Sum Mean", lambda x, z: (
        tf.reduce_sum(x), tf.reduce_mean(x), tf.reduce_sum(z, [0, 2]), tf.reduce_mean(x, 0, keepdims=True),
        tf.reduce_sum(x, 0) / count(x), tf.reduce_sum(x / count(x)), tf.reduce_mean(tf.concat([x, 2 * x], 0), 0),
        tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0), 0), tf.reduce_prod(tf.shape(z)[1:]),
            tf.reduce_sum(tf.shape(x)[:1]))),
    ("All Any", lambda z: (tf.reduce_all(z > 0, 1), tf.reduce_any(z > 0, [1, 2]))),
    ("L2Loss", lambda x: tf.nn.l2_loss(x)),
    ("ArgMax ArgMin TopKV2 InTopKV2 NthElement", lambda x, z, ids: (
        tf.argmax(z, 1), tf.argmin(tf.transpose(z), 0), tf.math.top_k(x, 2), tf.math.in_top_k(ids, tf.cast(x,
            tf.float32), 2),
        raw("NthElement", x, 1), tf.argmax(tf.reduce_sum(x, 0)))),
    ("UnsortedSegmentSum", lambda z, ids: tf.math.unsorted_segment_sum(z, ids, 3)),
    ("UnsortedSegmentSum SegmentSum", lambda z: (
        tf.math.unsorted_segment_sum(tf.transpose(z, [1, 0, 2]), [0, 1, 0, 2], 3),
        tf.math.segment_sum(tf.transpose(z, [1, 0, 2]), [0, 1, 1, 2]))),
    ("ScatterNd", lambda x, ids, flags: (
        tf.scatter_nd(ids[:, tf.newaxis], x, [3, 3]),
        tf.scatter_nd(tf.where(flags), tf.boolean_mask(x, flags) * 2, tf.shape(x, tf.int64)))),
    ("Bincount DenseBincount", _numbers_of),
    # selections
    ("StridedSlice Slice", lambda x, z: (
        x[:, 1], z[:, 1:3], z[..., 0], z[:, ::2, tf.newaxis], x[: tf.shape(x)[0]], x[tf.newaxis], z[:, -1], x[0:, :2],
        tf.slice(z, [0, 1, 0], [-1, 2, 3]), tf.slice(x, [0, 0], [tf.shape(x)[0], 2]), tf.transpose(x)[1],
        tf.reduce_sum(x, 0)[1:], tf.shape(z)[1:])),
    ("GatherV2 GatherNd", lambda x, z, ids, codes: (
        tf.gather(W, ids), tf.gather(W, codes % 4, axis=1), tf.gather(x, [0, 2], axis=1), tf.gather(x, ids,
            batch_dims=1),
        tf.gather(z, codes % 4, axis=1, batch_dims=1), tf.gather_nd(W, tf.stack([ids, ids], 1)),
        tf.gather(x, tf.range(tf.shape(x)[0])),
        tf.gather(tf.reduce_sum(x, 0), [0, 1]), tf.gather(tf.shape(z), [0, 2]))),
    ("Where GatherV2", lambda x, y, flags, c: (
        tf.boolean_mask(x, flags), tf.boolean_mask(x, flags) - tf.boolean_mask(y, flags),
        tf.reduce_sum(tf.boolean_mask(c, c > 0)) / tf.cast(tf.shape(tf.boolean_mask(c, c > 0))[0], tf.float64),
        tf.boolean_mask(x, x > 0) * 2, tf.gather_nd(x, tf.where(flags)))),
    ("Where GatherNd", lambda x, z: (
        tf.where(x > 0), tf.gather_nd(x, tf.where(x > 0)), tf.where(z > 0)[:, 0], tf.gather_nd(z, tf.where(z > 0)),
        tf.gather_nd(z, tf.where(x > 0)), tf.sparse.to_dense(tf.sparse.from_dense(tf.nn.relu(x))))),
    ("OneHot", lambda ids, codes: (tf.one_hot(ids, 3), tf.one_hot(ids, 3, axis=0), tf.one_hot(codes, 5, 2.0, 1.0,
        axis=1))),
    ("ReadVariableOp ResourceGather ResourceGatherNd", _variables),
    ("LookupTableFindV2 LowerBound UpperBound", _looked_up),
    # layers
    ("Conv2D", lambda image: [raw("Conv2D", image, K2, strides=[1, 2, 2, 1], padding=how, explicit_paddings=more)
                              for how, more in PADDINGS]),
    ("Conv2D Conv3D DepthwiseConv2dNative", lambda image, volume: (
        tf.nn.conv2d(image, K2, 1, "SAME", dilations=2), tf.nn.conv3d(volume, K3, [1] * 5, "VALID"),
        tf.nn.depthwise_conv2d(image, K2, [1] * 4, "SAME"), tf.nn.conv1d(image[:, 0], K2[0], 1, "SAME"),
        tf.nn.depthwise_conv2d(image, K2, [1] * 4, "SAME", dilations=[2, 2]), tf.nn.conv2d(image / count(image), K2,
            1, "SAME"))),
    ("Conv2DBackpropInput", _transposed),
    ("DepthwiseConv2dNativeBackpropInput", lambda image: raw(
        "DepthwiseConv2dNativeBackpropInput", tf.shape(image), K2[..., :1], image, strides=[1] * 4, padding="SAME")),
    ("Conv2DBackpropFilter DepthwiseConv2dNativeBackpropFilter", _filters),
    ("Conv3DBackpropInputV2 Conv3DBackpropFilterV2 Conv", _volumes),
    ("MaxPoolGrad MaxPoolGradV2 AvgPoolGrad MaxPool3DGrad AvgPool3DGrad", _pool_gradients),
    ("MaxPoolV2", lambda image: raw("MaxPoolV2", image, [1, 2, 2, 1], [1, 2, 2, 1], padding="SAME")),
    ("DepthToSpace SpaceToDepth", lambda image: (tf.nn.space_to_depth(image, 2),
                                                 tf.nn.depth_to_space(tf.nn.space_to_depth(image, 2), 2))),
    ("""ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea ScaleAndTranslate AdjustContrastv2 AdjustHue
     AdjustSaturation RGBToHSV HSVToRGB""", _images),
    ("ExtractImagePatches", lambda image: tf.image.extract_patches(image, [1, 2, 2, 1], [1, 2, 2, 1], [1] * 4, "SAME")),
    ("ImageProjectiveTransformV3", _transformed),
    ("Dilation2D", lambda image: tf.nn.dilation2d(image, K2[..., 0], [1] * 4, "SAME", "NHWC", [1] * 4)),
    ("QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars LRN", _quantized),
    ("BiasAdd BiasAddV1 BiasAddGrad", lambda x: (tf.nn.bias_add(x, W[:, 0]), raw("BiasAddV1", x, W[:, 0]),
                                                 raw("BiasAddGrad", x), tf.nn.bias_add(tf.zeros_like(x), W[:, 0]))),
    ("Softmax LogSoftmax", lambda z: (tf.nn.softmax(z), tf.nn.log_softmax(z), tf.nn.softmax(z, 1),
                                      tf.nn.softmax(tf.reduce_sum(z, 0)))),
    ("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits", lambda x, p, ids: (
        tf.nn.softmax_cross_entropy_with_logits(p, x), tf.nn.sparse_softmax_cross_entropy_with_logits(ids, x))),
    ("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3", _normalized),
    ("CTCLoss", label_sequences),
    # control flow
    ("StatefulPartitionedCall PartitionedCall", lambda x, y: (_nested(x, y), _nested(y, x), _read(x), _read(y))),
    ("StatelessIf If", lambda x, y: (tf.cond(tf.reduce_sum(W) > 0, lambda: x * 2, lambda: tf.tanh(y)),
                                     tf.cond(VARIABLES[0][0, 0] > 0, lambda: x @ VARIABLES[0], lambda: y @ W))),
    ("StatelessCase Case", lambda x: (
        raw("StatelessCase", 1, [x], Tout=[tf.float64], branches=_branches(tf.tanh, tf.sin)),
        tf.switch_case(tf.constant(1), [lambda: x, lambda: x * 2, lambda: tf.tanh(x)]),
        tf.switch_case(tf.constant(1), [lambda: x @ VARIABLES[0], lambda: x @ W]))),
    ("StatelessWhile While", lambda x: (_twice(x, tf.tanh), _twice(tf.reduce_mean(x, 0), lambda a: a * 2),
                                        _twice(x @ W, lambda a: a + VARIABLES[0][0]))),
    ("TensorListReserve TensorListFromTensor TensorListGetItem TensorListSetItem TensorListStack", _recurrent),
    ("EmptyTensorList TensorListPushBack TensorListPopBack TensorListLength TensorListElementShape", _listed),
    ("StatelessRandomUniformV2 StatelessRandomNormalV2", _drawn_for_rows),
    ("StatelessRandomUniformV2", _drawn_once),
    # random numbers, of seeds or not: these run, and are not compared
    ("""RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt StatelessRandomUniform StatelessRandomNormal
     StatelessTruncatedNormal StatelessRandomUniformInt StatelessRandomUniformV2 StatelessRandomNormalV2
     StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 StatelessRandomUniformFullIntV2 StatelessRandomGetKeyCounter
     StatelessRandomGetAlg StatelessRandomGetKeyCounterAlg""", _draws),
    ("""RandomGamma StatelessRandomGammaV2 StatelessRandomGammaV3 RandomPoissonV2 StatelessRandomPoisson
     StatelessRandomBinomial Multinomial StatelessMultinomial RandomShuffle RngReadAndSkip StatefulRandomBinomial""",
     _fixed_draws),
    # nothing is claimed of these with rows; without, they are the same
    ("CropAndResize", lambda x: x + raw("CropAndResize", np.ones([1, 2, 2, 1]), [[0.0, 0, 1, 1]], [0], [1,
        1]).shape[0]),
]  # fmt: skip

ALONE = {
    "AccumulateNV2": "TensorFlow replaces it before it runs",
    "CTCLossV2": "it runs on GPUs alone; CTCLoss has the same rule",
    "DebugIdentityV2": "it writes the files of a debugger",
    "EagerPyFunc": "nothing is ever claimed of it", "PyFunc": "nothing is ever claimed of it",
    "PyFuncStateless": "nothing is ever claimed of it",
    "Gather": "of graphs of TensorFlow 1; GatherV2 has the same rule",
    "LookupTableFind": "of graphs of TensorFlow 1; LookupTableFindV2 has the same rule",
    "MatexAllreduce": "a collective", "MatexBroadcast": "a collective",
    "MatexHandOverGradient": "a collective", "MatexReduceGradients": "a collective",
    "MatexReduceOnDevice": "a collective",
    **dict.fromkeys(["Merge", "RefMerge", "RefSwitch", "Switch"], "of graphs of TensorFlow 1"),
    "NoOp": "it gives nothing", "Placeholder": "every argument is one",
    "VarHandleOp": "functions are given the handles of variables", "VarIsInitializedOp": "of graphs of TensorFlow 1",
    "Variable": "of graphs of TensorFlow 1", "VariableV2": "of graphs of TensorFlow 1",
    "_ReadVariablesOp": "made by rewriting a graph that was traced",
}  # fmt: skip
"""Op types without a case, and why."""

DRAWN = (_draws, _fixed_draws)

OPEN = {
    "pairs of all rows": lambda x: x @ tf.transpose(x),
    "distance to the mean": lambda x: x - tf.reduce_mean(x),
    "distance to the mean row": lambda x: x - tf.reduce_mean(x, 0),
    "the first row": lambda x: x[0],
    "as many as the first rows": lambda x, flags, z: (tf.ones_like(x[:2]), tf.ones_like(x[1]), tf.ones_like(
        tf.boolean_mask(x, flags)[:1]), tf.ones_like(x[:1] * 2), tf.ones_like(x[:1] + z[0])),
    "the last row": lambda x: x[-1],
    "rows in reverse": lambda x: tf.reverse(x, [0]),
    "softmax over rows": lambda x: tf.nn.softmax(x, 0),
    "sums up to each row": lambda x: tf.cumsum(x),
    "rows in order": lambda x: tf.sort(x, 0),
    "noise of a fixed shape": lambda x: x + tf.random.stateless_normal([N, 3], [1, 2], dtype=tf.float64),
    "half of the rows": lambda x: x[: tf.shape(x)[0] // 2],
    "the rows' number in a shape": lambda x: tf.reshape(x, [N, -1]),
    "rows moved on": lambda x: tf.roll(x, 1, 0),
    "the greatest row": lambda x: tf.reduce_max(x, 0),
    "distinct numbers": lambda ids: tf.unique(ids).y,
    "rows in any order": lambda x: tf.random.shuffle(x, seed=1),
    "pairs of halves": lambda z: tf.multiply(*tf.split(tf.reshape(z, [-1, 3]), 2)),
    "mean of chosen rows": lambda x, flags: tf.reduce_mean(tf.boolean_mask(x, flags)),
    "rows in order for chosen rows": lambda x, flags: tf.broadcast_to(
        tf.sort(tf.boolean_mask(x, flags)[:, :1], 0), tf.shape(tf.boolean_mask(x, flags))),
    "gradients of the single row that a mask chooses": lambda c: tf.gradients(_compare_pairs(
        tf.boolean_mask(c, c >= tf.reduce_max(c))), c)[0],
    "rows that two masks choose": lambda x, y, flags, c: tf.boolean_mask(x, flags) * tf.boolean_mask(y, c > 9),
    "rows that masks choose in calls": lambda x, y, flags, c: _masked(x, flags) - _masked(y, c > 9),
    "a batch below another, taken as pairs": lambda x, y: tf.reshape(tf.concat([x, y], 0), [-1, 6]),
    "a batch below another beside a longer one": lambda x, z: tf.concat([x, z[:, 0]], 0) + tf.reshape(z, [-1, 6])[:,
        :3],
    "rows merged in another order": lambda z: tf.reshape(tf.transpose(z, [1, 0, 2]), [-1, 3]),
    "pairs of rows": lambda x: tf.reshape(x, [-1, 6]),
    "columns beside rows": lambda turned, x: tf.transpose(x)[:, : tf.shape(x)[0]] * tf.reduce_sum(x, 1),
    "means of whole numbers": lambda codes: [tf.reduce_mean(one) for one in (
        codes, codes - 4, codes % 2 * 2_000_000_000, tf.cast(codes * 50, tf.uint8))],
    "norms": lambda x, y, codes: (raw("EuclideanNorm", tf.complex(x, y), [0]), raw("EuclideanNorm", codes, [0])),
    "the contrast of a single image": lambda floats: tf.image.adjust_contrast(floats[:, 0], 0.7),
    "a diagonal of rows": lambda c: raw("Einsum", [c], equation="i->ii"),
    "no numbers of rows": lambda x: [
        combine(tf.shape(x)[0], tf.zeros([0], tf.int32)) for combine in (tf.multiply, tf.maximum)],
    "at least one": lambda x: tf.maximum(tf.shape(x)[0] * tf.stack([-1, unknown(0)]), 1),
    "shapes in a list": _listed_shapes,
    "no shapes in a list": _list_no_shapes,
    "lists of extremes and shapes, added up": _add_lists,
    "the single row that a mask chooses, squeezed": lambda x, c: tf.squeeze(
        tf.boolean_mask(x, c >= tf.reduce_max(c))),
    "as many rows as two batches": lambda x, z: tf.reshape(
        tf.tanh(tf.reshape(z, [-1, 3])), [tf.shape(tf.concat([x, x], 0))[0], -1]),
    "the first of unknown entries": _first_of_unknown_entries,
    "a large size": lambda x: tf.shape(x)[0] * unknown(400_000_000),
    "a division of whole numbers": lambda codes: raw("Div", tf.reduce_sum(codes, 0), [2, 2, 2]),
    "numbers of rows": lambda x: tf.range(tf.shape(x)[0]) * 2,
    "the greatest of the numbers of rows": lambda x: tf.reduce_max(tf.range(tf.shape(x)[0])),
    "one-hot numbers of rows": lambda x: tf.one_hot(tf.range(tf.shape(x)[0]), 3),
    "a longer range": lambda x: tf.gather(x, -tf.range(tf.shape(x)[0])),
    "as many columns as rows": lambda z: tf.reshape(z, [tf.shape(z)[0], 12])[:, : tf.shape(z)[0]],
    "as many columns as rows, at the end": lambda z: z[..., : tf.shape(z)[0] // 2],
    "zeros that are chosen": lambda x: tf.gather(W, tf.zeros_like(x, tf.int32)) / count(x) + 1.0,
    "softmax of zeros": lambda x: tf.nn.softmax(tf.zeros_like(x)) / count(x) + x,
    "padded zeros": lambda x: tf.pad(tf.zeros_like(x), [[0, 0], [0, 1]], constant_values=1.0) / count(x) + 1.0,
    "biased zeros": lambda x: tf.nn.bias_add(tf.zeros_like(x), W[:, 0]) / count(x) + x,
    "whether a sum is not zero": lambda codes: tf.cast(tf.reduce_sum(codes - 1), tf.bool),
    "a negative size": lambda x: tf.reshape(x, [-1, tf.negative(-tf.shape(x)[1])]) * tf.cast(-tf.shape(x)[1],
        tf.float64),
    "a float that is no whole number": lambda x: tf.cast(tf.shape(x)[1] / 2 * 2, tf.float64) * x[:,
        : tf.shape(x)[1] // 2],
    "half of the number of rows": lambda x: tf.cast(count(x) / 2, tf.int32),
    "the length of what a sum chooses": lambda x: tf.shape(tf.where(tf.reduce_sum(x, 0) > 0))[0],
    "a parted constant": lambda x: tf.reshape(tf.constant(ARRAYS["x"]), [tf.shape(x)[0], -1]),
    "lengths beside images": lambda z, ids: tf.reverse_sequence(tf.transpose(z, [1, 0, 2])[:N], ids, 0, 1),
    "quantized by the batch": lambda floats: raw("QuantizeAndDequantizeV2", floats, 0.0, 0.0, range_given=False),
    "one transform for each of a fixed batch": lambda floats: raw(
        "ImageProjectiveTransformV3", floats, ARRAYS["transforms"], [6, 6], 0.5, interpolation="BILINEAR"),
    "conditions along another axis": lambda flags, x: raw("Select", tf.cast(W[0, :3] > 0, tf.bool), tf.transpose(x),
                                                          tf.transpose(x)),
    "a branch that rows choose": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x),
    "a derived number within a branch": lambda x: tf.cond(tf.reduce_sum(W) > 0, lambda: tf.sqrt(tf.reduce_mean(x * x)),
                                                          lambda: tf.constant(0.0, tf.float64)),
    "masks in a loop": lambda x: tf.while_loop(
        lambda i, _: i < 2, lambda i, a: (i + 1, tf.boolean_mask(a, a[:, i] > 0)), [0, x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 3])])[1],
    "a list for batches of a fixed length": lambda x: raw(
        "TensorListStack", raw("TensorListPushBack", raw("EmptyTensorList", [N, 3], 2, element_dtype=tf.float64), x),
        [N, 3], element_dtype=tf.float64),
    "zeros that grow in a loop": lambda x: tf.while_loop(
        lambda i, _: i < 2, lambda i, a: (i + 1, a + x), [0, tf.zeros([tf.shape(x)[0], 3], x.dtype)])[1] / count(x) + x,
    "a wrapped number": lambda x: tf.cast(tf.shape(x)[0] * 100, tf.int8),
    "an identity matrix": lambda x: tf.eye(tf.shape(x)[0], dtype=tf.float64) @ x,
    "a squeeze of all": lambda x: tf.squeeze(x[:, tf.newaxis]),
    "a sum that is found in another": lambda x: tf.gather(W, tf.cast(tf.abs(tf.reduce_sum(x)), tf.int32) % 3),
}  # fmt: skip
"""Functions in which rows meet, or seem to: nothing is to be claimed of them that is not so."""
