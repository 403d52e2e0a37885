"""The site has every guide, and nothing that is not there."""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def test_the_site_leads_to_every_guide() -> None:
    entries = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    named = sorted(page for entry in entries for page in entry.values())
    docs = ROOT / "docs"
    assert named == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))
