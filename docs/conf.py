"""The site of these pages: `python -m sphinx -W -b html docs docs/_build`, then open docs/_build/index.html.

Sphinx is maintained, imports the docstrings and the commands of this very checkout, and searches without a network.
mkdocs-material, which was the other choice, has been in maintenance since the end of 2025.
"""

from typing import Any

import matex_tf
from matex_tf.deploy import python as runs
from matex_tf.launch import cli  # noqa: F401  (whose package has the name of a function, too)
from matex_tf.tune import python as searches
from matex_tf.version import __version__

matex_tf.launch, matex_tf.tune = runs.launch, searches.tune  # as scripts call them

project = "matex_tf"
author = copyright = "the matex_tf authors"
version = release = __version__
html_title = f"matex_tf {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
default_role = "code"
smartquotes = False  # an option begins with two hyphens
highlight_language = "none"  # of indented blocks, which are commands, outputs and Python

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

html_theme = "furo"
html_static_path = ["style"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_sphinx = False


def write_usage(app: Any, ctx: Any, lines: list[str]) -> None:
    """The usage of a command as it prints it: that of `matex run` has mpirun's options, too."""
    usages = [line.removeprefix("Usage: ") for line in ctx.get_usage().splitlines()]
    lines[:] = [".. code-block:: none", "", *(f"    {usage}" for usage in usages), ""]


def write_blocks(app: Any, ctx: Any, lines: list[str]) -> None:
    """What a help text has as it stands (after `\\b`) is a block of code: sphinx-click makes lines of prose of it."""
    found: list[str] = []
    for line in lines:
        if not line.startswith("| "):
            found.append(line)
            continue
        if not found or not found[-1].startswith("    "):
            found += ["", ".. code-block:: none", ""]
        found.append(f"    {line.removeprefix('| ')}")
    lines[:] = found


def list_names(app: Any, page: str, source: list[str]) -> None:
    """Clusters and exceptions of the API, one line for each that the package has."""
    if page == "api":
        public = {name: getattr(matex_tf, name) for name in sorted(dir(matex_tf)) if name[:1].isupper()}
        clusters = [name for name, one in public.items() if hasattr(one, "__signature__")]
        errors = [name for name, one in public.items() if isinstance(one, type) and issubclass(one, Exception)]
        errors = errors or ["matex_tf.readers.ReaderError"]
        for mark, kind, names in (("clusters", "function", clusters), ("errors", "exception", errors)):
            source[0] = source[0].replace(f".. {mark}", "\n".join(f".. auto{kind}:: {name}" for name in names))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", list_names)
    app.connect("sphinx-click-process-usage", write_usage)
    app.connect("sphinx-click-process-description", write_blocks)
