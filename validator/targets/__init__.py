"""Where a configuration can run: one vLLM server of this machine, or one that is up already.

A target starts a server for given flags and says what it really does; nobody above it knows how. `target.py` holds the
seam, `local.py` the two targets of one machine, `server_facts.py` what a server tells about itself.
"""
