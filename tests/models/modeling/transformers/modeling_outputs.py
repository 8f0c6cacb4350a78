# See __init__.py.

from dataclasses import dataclass
from typing import Any


@dataclass
class CausalLMOutput:
    loss: Any = None
    logits: Any = None

    def to_tuple(self):
        return tuple(value for value in (self.loss, self.logits) if value is not None)
