"""HTML as a tree, strictly: whatever is opened must be closed, in order."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser

_VOID = {"meta", "link", "img", "br", "hr", "input"}


@dataclass
class Element:
    """An element and what is inside."""

    tag: str
    attributes: dict[str, str]
    children: list["Element | str"] = field(default_factory=list)

    def __iter__(self) -> Iterator["Element"]:
        """Itself and every element inside, in the order of the document."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child

    def find(self, *tags: str) -> list["Element"]:
        """Elements inside with one of these tags."""
        return [element for element in self if element.tag in tags and element is not self]

    @property
    def text(self) -> str:
        """All text inside."""
        return "".join(c if isinstance(c, str) else c.text for c in self.children)


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


@cache
def parse(text: str) -> Element:
    """The document's root element."""
    builder = _Builder()
    builder.feed(text)
    builder.close()
    assert len(builder.open) == 1, [element.tag for element in builder.open]
    (root,) = [child for child in builder.open[0].children if isinstance(child, Element)]
    return root
