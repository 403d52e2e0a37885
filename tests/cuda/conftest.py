from tests.ops.conftest import one_thread

__all__ = ["one_thread"]
