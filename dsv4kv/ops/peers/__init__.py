"""Operations that come from elsewhere: packages of others, and what users bring.

The four packages known here read the same ``fp8_ds_mla`` pages. Each has one file: it finds the
package's own functions and bridges what their parameters and the contract have different.
Nothing of a package is imported before it is asked for.
"""

from dsv4kv.choices import PEERS
from dsv4kv.ops.peers.foreign import Foreign


def load_peer(name: str) -> Foreign:
    """Find the operations of a known package, a key of ``PEERS``.

    Raises:
        PeerUnavailable: It is not installed, cannot be imported, or has no such operation.
    """
    foreign: Foreign = PEERS[name].load().load()
    return foreign
