"""How Sphinx builds the site; `make docs` calls it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

project = "convs2s_jax"
author = "the authors of convs2s_jax"
copyright = "the authors of convs2s_jax, Apache 2.0"
extensions = ["myst_parser", "sphinx.ext.viewcode", "sphinx_copybutton", "mathml"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["files/**"]

myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
myst_fence_as_directive = ["math"]
myst_number_code_blocks: list[str] = []
highlight_language = "none"
smartquotes = False
add_module_names = False
python_maximum_signature_line_length = 80
python_display_short_literal_types = True
viewcode_line_numbers = True

html_theme = "furo"
html_title = "convs2s_jax"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/favicon.svg"
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
html_last_updated_fmt = None
html_theme_options = {"navigation_with_keys": True}
pygments_style = "tango"
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp, .go"
