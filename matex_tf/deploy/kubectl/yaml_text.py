"""Plain data as YAML, for `kubectl` and for readers."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Quotes every string but plain keys: YAML parsers disagree about which words are numbers (1e3, 0o7, 1_000)."""

    def represent_mapping(self, *given: Any, **options: Any) -> yaml.MappingNode:
        node = super().represent_mapping(*given, **options)
        for key, _ in node.value:
            key.style = None if key.value.isalnum() else key.style
        return node


def _represent_text(dumper: _Dumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else '"')


_Dumper.add_representer(str, _represent_text)


def dump_yaml(data: dict[str, Any]) -> str:
    """A YAML document of dicts, lists, strings, numbers and booleans. Multiline strings are block scalars."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=float("inf")))
