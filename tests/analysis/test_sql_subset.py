"""Every query stays in the SQL that DuckDB and Spark read alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.sql_subset import violations
from tracekit.analysis import queries

FOLDER = Path(queries.__file__).parent / "sql"
FILES = sorted(FOLDER.glob("*.sql"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_query_stays_in_the_subset(path: Path) -> None:
    assert list(violations(path.read_text())) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_query_says_what_it_asks(path: Path) -> None:
    assert path.read_text().startswith("-- ")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SELECT a::BIGINT FROM t", "a cast by ::"),
        ("SELECT a FROM t QUALIFY b = 1", "QUALIFY"),
        ("SELECT a // 2 FROM t", "integer division by //"),
        ("SELECT a FROM t GROUP BY ALL", "GROUP BY ALL"),
        ("SELECT quantile_cont(a, 0.5) FROM t", "the function quantile_cont"),
        ("SELECT SUM(a) FILTER (WHERE b) FROM t", "FILTER"),
        ("SELECT a FROM t ORDER BY a", "ORDER BY a without NULLS FIRST or LAST"),
        (
            "SELECT LAG(a) OVER (PARTITION BY b ORDER BY f(c, d) NULLS LAST, e ROWS BETWEEN 1"
            " PRECEDING AND CURRENT ROW) FROM t",
            "ORDER BY e without NULLS FIRST or LAST",
        ),
        ("SELECT a FROM t UNION SELECT a FROM u", "UNION without ALL"),
    ],
)
def test_what_only_one_engine_knows_is_found(text: str, what: str) -> None:
    assert what in list(violations(text))


def test_every_query_is_asked() -> None:
    asked = "".join(path.read_text() for path in FOLDER.parent.rglob("*.py"))
    unused = [path.stem for path in FILES if f'"{path.stem}"' not in asked]
    assert unused == []
