"""What a script wants with the number of rows that it asks for is read from its source."""

import sys
import textwrap

import pytest

from matex_tf import row_uses

CASES = [
    ("books", "total += loss * len(x)"),
    ("books", "seen += x.shape[0]"),
    ("books", "total = total + loss * float(x.shape[0])"),
    ("books", "seen += tf.shape(x)[0]"),
    ("books", "n = len(x)\ntotal += loss * n\nseen += n"),
    ("books", "n = m = tf.cast(tf.shape(x)[0], 'float32')\nprint(loss / n, m)"),
    ("books", "if len(x) < 64: pass"),
    ("books", "assert x.shape[0] == 4, 'odd'"),
    ("books", "print(f'{len(x)} rows')"),
    ("books", "print('%d rows' % len(x))"),
    ("books", "sizes.append((loss, len(x)))"),
    ("books", "average.update(loss, len(x))"),
    ("books", "gradients = [loss / len(x) for _ in range(2)]"),
    ("books", "total += loss * (len(x) if len(x) else 1)"),
    ("rows", "noise = tf.zeros([x.shape[0], 3])"),
    ("rows", "noise = tf.zeros(tf.shape(x))"),
    ("rows", "size = len(x)\nnoise = tf.zeros((2 * size, 3))"),
    ("rows", "half = len(x) // 2\nfirst = rows[:half]"),
    ("rows", "for i in range(len(x)): pass"),
    ("rows", "i = 0\nwhile i < len(x): i += 1"),
    ("rows", "last = rows[len(x) - 1]"),
    ("rows", "helper(x.shape[0])"),
    ("unclear", "n = len(x)\nseen += n\nnoise = tf.zeros([n, 3])"),
    ("unclear", "f = lambda: len(x)\nf()"),
    ("unclear", "self.rows = len(x)"),
    ("unclear", "def of(x):\n    return loss * len(x)\nof(x)"),
]


class Tensor:
    """Asks, as a tensor of a loop does, what the script wants."""

    def __init__(self):
        self.found = set()

    def ask(self, depth):
        frame = sys._getframe(depth)
        self.found.add(row_uses.use_of(frame.f_code, frame.f_lasti, frame.f_lineno))
        return 4

    def __len__(self):
        return self.ask(2)

    @property
    def shape(self):
        return Shape(self)


class Shape:
    def __init__(self, tensor):
        self.tensor = tensor

    def __getitem__(self, key):
        return self.tensor.ask(2)


class Library:
    @staticmethod
    def shape(x):
        x.ask(2)
        return [4, 3]

    @staticmethod
    def zeros(shape):
        return shape

    @staticmethod
    def cast(value, dtype):
        return value


class Whatever:
    def __getattr__(self, name):
        return lambda *args, **kwargs: None


@pytest.mark.parametrize("within", ["module", "function"])
@pytest.mark.parametrize("wanted, text", CASES)
def test_what_a_script_wants_with_the_rows_is_read_from_its_source(tmp_path, wanted, text, within):
    if within == "function":
        names = "total, seen = 0.0, 0\n"
        text = "def train():\n" + textwrap.indent(names + text, "    ") + "\ntrain()"
    path = tmp_path / "script.py"
    path.write_text(text)
    x = Tensor()
    known = {"x": x, "tf": Library, "loss": 0.5, "total": 0.0, "seen": 0, "sizes": [], "rows": list(range(9))}
    known |= {"average": Whatever(), "self": Whatever(), "helper": print}
    exec(compile(text, str(path), "exec"), known)
    assert x.found == {wanted}


def test_without_source_nothing_is_taken_for_granted():
    x = Tensor()
    exec("total = 3 * len(x)", {"x": x})
    assert x.found == {"unclear"}
