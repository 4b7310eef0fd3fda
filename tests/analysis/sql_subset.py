"""The SQL that DuckDB and Spark read alike, as rules that a text can be held to."""

from __future__ import annotations

import re
from collections.abc import Iterator

FUNCTIONS = frozenset(
    """
    avg array_sort bool_or cast coalesce collect_set count date_trunc floor greatest lag lead least
    max max_by median min min_by mod nullif percentile row_number stddev_samp sum
    """.split()  # noqa: SIM905
)
"""Functions that were verified on both engines to give the same."""
WORDS = frozenset("and as by exists from in join not on or over then values when where".split())  # noqa: SIM905
"""Words that may stand before a bracket without being a function."""

FORBIDDEN = {
    "a cast by ::": r"::",
    "QUALIFY": r"\bqualify\b",
    "ASOF": r"\basof\b",
    "integer division by //": r"//",
    "integer division by div": r"\bdiv\b",
    "GROUP BY ALL": r"\bgroup\s+by\s+all\b",
    "GROUP BY a number": r"\bgroup\s+by\s+\d",
    "ORDER BY ALL": r"\border\s+by\s+all\b",
    "a named window": r"\bwindow\s+\w+\s+as\b",
    "a positional join": r"\bpositional\s+join\b",
    "USING": r"\busing\b",
    "a lambda": r"->",
    "WITHIN GROUP": r"\bwithin\s+group\b",
    "EXCLUDE or REPLACE of columns": r"\*\s*(exclude|replace)\b",
    "ILIKE": r"\bilike\b",
    "FILTER": r"\bfilter\s*\(",
    "a list or struct literal": r"[\[\]{}]",
    "a quoted name": r'"',
    "RANGE or GROUPS frames": r"\b(range|groups)\s+between\b",
    "UNION without ALL": r"\bunion\b(?!\s+all\b)",
    "LIMIT": r"\blimit\b",
}


def violations(text: str) -> Iterator[str]:
    """What a query has that is outside of the subset."""
    plain = re.sub(r"'[^']*'", "''", re.sub(r"--[^\n]*", "", text)).lower()
    for name, pattern in FORBIDDEN.items():
        if re.search(pattern, plain):
            yield name
    for name in re.findall(r"\b([a-z_][a-z0-9_]*)\s*\(", plain):
        if name not in FUNCTIONS | WORDS:
            yield f"the function {name}"
    for keys in orders(plain):
        for key in split(keys):
            if not re.search(r"\bnulls\s+(first|last)$", key):
                yield f"ORDER BY {key} without NULLS FIRST or LAST"


def orders(text: str) -> Iterator[str]:
    """The keys of every ORDER BY."""
    for match in re.finditer(r"\border\s+by\b", text):
        rest, depth = text[match.end() :], 0
        for place, sign in enumerate(rest):
            depth += (sign == "(") - (sign == ")")
            if depth < 0 or (not depth and re.match(r"\brows\b", rest[place:])):
                yield rest[:place]
                break
        else:
            yield rest


def split(keys: str) -> list[str]:
    """Keys at the commas that stand in no bracket."""
    parts, depth = [""], 0
    for sign in keys:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [" ".join(part.split()) for part in parts]
