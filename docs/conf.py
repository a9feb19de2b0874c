"""The site of these pages: `python -m sphinx -W -b html docs docs/_build`, then open docs/_build/index.html.

Sphinx is maintained, imports the docstrings and the commands of this very checkout, and searches without a network.
mkdocs-material, which was the other choice, has been in maintenance since the end of 2025.
"""

from matex_tf.version import __version__

project = "matex_tf"
author = copyright = "the matex_tf authors"
version = release = __version__
html_title = f"matex_tf {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
default_role = "code"
highlight_language = "none"  # of indented blocks, which are commands, outputs and Python

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

html_theme = "furo"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False
