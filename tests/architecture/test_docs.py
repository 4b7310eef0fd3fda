"""The documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def test_links_between_documents_lead_to_files(root: Path) -> None:
    documents = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    broken = [
        f"{document.relative_to(root)}: {target}"
        for document in documents
        for target in LINK.findall(document.read_text())
        if not (document.parent / target).exists()
    ]
    assert broken == []
