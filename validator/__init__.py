"""What people run: the `goodfleet` command, and everything that touches a real vLLM server.

The top layer. It is the only one that may import vllm or torch, and it imports them inside the commands that need
them, so planning works on a laptop that has neither.
"""
