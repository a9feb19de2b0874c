"""Plain data as YAML, for `kubectl` and for people. Texts are quoted as JSON quotes them, which YAML reads alike."""

from __future__ import annotations

import json
import re
from typing import Any

# What YAML does not take as it is within quotes, though JSON does.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9]*")


def dump_yaml(data: dict[str, Any]) -> str:
    """`data`, of dicts, lists, texts, numbers and flags, as a YAML document."""
    return "\n".join(_format_lines(data)) + "\n"


def _format_lines(data: Any) -> list[str]:
    if isinstance(data, dict) and data:
        found = []
        for name, value in data.items():
            key = name if _PLAIN.fullmatch(name) else _format_scalar(name)
            if isinstance(value, (dict, list)) and value:
                found += [f"{key}:", *(f"  {line}" for line in _format_lines(value))]
            else:
                found.append(f"{key}: {_format_scalar(value)}")
        return found
    if isinstance(data, list) and data:
        found = []
        for value in data:
            first, *rest = _format_lines(value)
            found += [f"- {first}", *(f"  {line}" for line in rest)]
        return found
    return [_format_scalar(data)]


def _format_scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
