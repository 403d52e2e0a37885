"""dsv4kv: benchmark and profile the DeepSeek-V4 KV cache."""

TYPE_CHECKING = False  # not typing's: `python -m dsv4kv` has the current folder on its path here

if TYPE_CHECKING:
    from pathlib import Path

    from dsv4kv.view.exports import Records

__version__ = "0.1.0"


def load_records(*sources: "str | Path") -> "Records":
    """Run records as pandas frames: ``load_records("results/*.json").operations``.

    Args:
        sources: Files, folders of records, or patterns.

    Raises:
        RecordError: A source without records, or a file that is none.
        ImportError: pandas is not installed (``pip install 'dsv4kv[pandas]'``).
    """
    from dsv4kv.view.exports import load_records as load

    return load(*sources)
