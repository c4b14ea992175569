"""A binary heap of (key, request) in two rows of the replica's tables: which decoding request finishes next.

Keys are `finish step << 28 | admission`, so equal finish steps leave in order of admission, as vLLM walks its running
list. Plain indexing into the two-dimensional tables on purpose: a row taken as an array of its own costs two atomic
operations each time under numba.
"""

from simulator.compiled import inlined

ADMISSION_BITS = 28


@inlined
def sift_up(w, r, i, key, value):
    """Place (key, value) at position i of replica r's heap or above it."""
    while i > 0:
        parent = (i - 1) >> 1
        if w.heap_keys[r, parent] <= key:
            break
        w.heap_keys[r, i] = w.heap_keys[r, parent]
        w.heap_values[r, i] = w.heap_values[r, parent]
        i = parent
    w.heap_keys[r, i] = key
    w.heap_values[r, i] = value


@inlined
def sift_down(w, r, count, i, key, value):
    """Place (key, value) at position i of a heap of `count` entries or below it."""
    while True:
        child = 2 * i + 1
        if child >= count:
            break
        if child + 1 < count and w.heap_keys[r, child + 1] < w.heap_keys[r, child]:
            child += 1
        if w.heap_keys[r, child] >= key:
            break
        w.heap_keys[r, i] = w.heap_keys[r, child]
        w.heap_values[r, i] = w.heap_values[r, child]
        i = child
    w.heap_keys[r, i] = key
    w.heap_values[r, i] = value


@inlined
def heap_remove(w, r, last, value):
    """Take one request out of a heap of last + 1 entries. Only preemption needs it, so a linear search will do."""
    i = 0
    while w.heap_values[r, i] != value:
        i += 1
    if i == last:
        return
    if i > 0 and w.heap_keys[r, (i - 1) >> 1] > w.heap_keys[r, last]:
        sift_up(w, r, i, w.heap_keys[r, last], w.heap_values[r, last])
    else:
        sift_down(w, r, last, i, w.heap_keys[r, last], w.heap_values[r, last])
