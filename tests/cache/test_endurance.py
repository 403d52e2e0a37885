"""Many operations with sharing and too little memory lose no block.

A short day each; ``make endure`` runs a million operations of every machine.
"""

import os
from collections.abc import Callable

import pytest

from tests.cache.machines import MACHINES

OPERATIONS = int(os.environ.get("DSV4KV_ENDURANCE_OPERATIONS", "1500"))


@pytest.mark.parametrize("name", MACHINES)
def test_no_block_is_lost_in_many_operations(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    machine = MACHINES[name](7)
    machine.run(OPERATIONS)
    record_property(name, {"operations": machine.operations, "refusals": machine.refusals})
