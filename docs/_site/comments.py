"""For mkdocstrings: a dataclass field is explained by the comment behind it, or by the help of its `option(...)`.

The source says what a field is in one place, beside the field; the command line reads it there, and so does the site.
"""

from __future__ import annotations

import ast
import io
import tokenize
from typing import Any

import griffe


class Comments(griffe.Extension):
    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **kwargs: Any) -> None:
        if attr.docstring is not None or not isinstance(node, ast.AnnAssign):
            return
        words = self._help(node) or self._comment(attr)
        if words:
            attr.docstring = griffe.Docstring(words[0].upper() + words[1:], parent=attr, lineno=attr.lineno)

    @staticmethod
    def _help(node: ast.AnnAssign) -> str:
        value = node.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "option":
            for argument in value.args[1:2]:
                if isinstance(argument, ast.Constant):
                    return str(argument.value)
                if isinstance(argument, ast.JoinedStr):
                    return "".join(str(getattr(part.value, "id", part.value)) for part in argument.values)
        return ""

    @staticmethod
    def _comment(attr: griffe.Attribute) -> str:
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(attr.source).readline))
        except (tokenize.TokenError, IndentationError):
            return ""
        return " ".join(t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT and "type:" not in t.string)
