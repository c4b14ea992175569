"""Step times for worlds built in tests: a test writes down the terms it is about, and no others."""

import numpy as np

from simulator.steptime import StepTimeModel

__all__ = ["NO_TIME"]

NO_TIME = StepTimeModel(
    decode_s=np.zeros(1),
    mixed_s=np.zeros(1),
    sequence_s=0.0,
    kv_s=0.0,
    window_kv_s=0.0,
    attention_s=0.0,
    window_attention_s=0.0,
    prefill_request_s=0.0,
    host_s=0.0,
    host_sequence_s=0.0,
    sync_s=0.0,
    request_overhead_s=0.0,
    window_tokens=0,
)
"""Nothing takes any time. To be `replace`d, the two tables always: they reach no token."""
