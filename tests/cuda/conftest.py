from tests.cuda.nvrtc import nvrtc
from tests.ops.conftest import one_thread

__all__ = ["nvrtc", "one_thread"]
