"""What a layer keeps of the past decides a step's memory and reading: keys and values, one latent vector, a state.

- *Grouped-query attention* keeps ``2 x kv_heads x head_dim`` elements a token; ranks share the heads.
- *Latent attention* (MLA, DeepSeek-V2, arXiv 2405.04434) keeps one vector of ``kv_rank + rope_dim`` elements for all
  heads, so every rank holds it whole (vLLM 0.32 `MLAAttentionSpec`: one KV head, no factor of 2 for values).
- *Sparse attention* keeps every token and reads at most ``reads`` of them; an index key per token is read for all.
- *Compressed attention* (DeepSeek-V4) keeps one entry for ``tokens_per_entry`` tokens, and the last tokens as they are
  in a *branch*: a second, short cache of the same layers.
- *Gated linear attention* (Gated DeltaNet, arXiv 2412.06464) keeps a state of constant size a sequence and no KV.

Left out: scales inside a cache row, and states kept at block ends for prefix caching.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IndexKeys", "KvGroup", "LatentAttention", "LinearAttention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexKeys:
    """Short keys by which sparse attention chooses what to read: one a token and layer, on every rank."""

    heads: int
    "Index query heads."
    dim: int
    "Width of an index key."
    bytes: int
    "Stored bytes of a key; the KV cache's type does not change them."
    split: bool = False
    "Whether ranks share the query heads, as KV heads; else every rank scores with all of them."


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers whose KV cache behaves alike."""

    layers: int
    "Number of layers."
    window: int | None
    "Sliding window in tokens: older ones are dropped; None = all are kept."
    reads: int | None = None
    "Most tokens one query reads, though all are kept (sparse attention); None = all that are kept."
    index: IndexKeys | None = None
    "Index keys, one an entry; None = there are none."
    tokens_per_entry: int = 1
    "Tokens that share one entry of the cache."
    branch: bool = False
    "A second cache of layers that other groups count; what it holds is set aside for every sequence."

    @property
    def read_limit(self) -> int | None:
        """Most tokens of context a query reads; None = all."""
        limits = [limit for limit in (self.window, self.reads) if limit is not None]
        return min(limits, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Shape of multi-head latent attention; every layer of a model has it or none."""

    q_rank: int | None
    "``q_lora_rank``: width of the compressed query; None = queries are not compressed."
    kv_rank: int
    "``kv_lora_rank``: width of the compressed keys and values."
    nope_dim: int
    "``qk_nope_head_dim``: part of a query head without position."
    rope_dim: int
    "``qk_rope_head_dim``: part with position; its key is shared by all heads."
    value_dim: int
    "``v_head_dim``: width of a value head; ``width`` where heads attend to the vector itself, which nothing expands."
    output_rank: int | None = None
    "``o_lora_rank``: groups of heads are projected to this width first; None = one output projection."
    output_groups: int = 1
    "``o_groups``: number of those groups."
    fp8_bytes: int | None = None
    "Bytes of a vector in an 8-bit cache where not one an element; None = one an element."

    @property
    def width(self) -> int:
        """Elements a token keeps in one layer."""
        return self.kv_rank + self.rope_dim

    def weights(self, hidden: int, heads: int) -> int:
        """Weights of one layer, its two norms included."""
        query_width = heads * (self.nope_dim + self.rope_dim)
        query = hidden * query_width
        if self.q_rank is not None:
            query = hidden * self.q_rank + self.q_rank + self.q_rank * query_width
        key_value = hidden * self.width + self.kv_rank
        if self.value_dim != self.width:
            key_value += self.kv_rank * heads * (self.nope_dim + self.value_dim)
        output = heads * self.value_dim * hidden
        if self.output_rank is not None:
            output = (heads * self.value_dim + self.output_groups * hidden) * self.output_rank
        return query + key_value + output

    def vector_bytes(self, kv_bytes_per_element: int) -> int:
        """Stored bytes of the vector of one token (or entry) in one layer."""
        if kv_bytes_per_element == 1 and self.fp8_bytes is not None:
            return self.fp8_bytes
        return self.width * kv_bytes_per_element

    def replicated_weights(self, hidden: int) -> int:
        """Those of them on every rank: the projections into the latent vectors (vLLM 0.32 deepseek_v2.py)."""
        return hidden * (self.width + (self.q_rank or 0))

    def flop_per_pair(self, heads: int) -> int:
        """Operations of one layer for one (query, key) pair of a prompt chunk, keys and values expanded by head."""
        return 2 * heads * (self.nope_dim + self.rope_dim + self.value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Layers of gated linear attention, by the names of Qwen's config.json."""

    layers: int
    "Number of such layers."
    key_heads: int
    "``linear_num_key_heads``."
    value_heads: int
    "``linear_num_value_heads``."
    key_dim: int
    "``linear_key_head_dim``."
    value_dim: int
    "``linear_value_head_dim``."
    conv_kernel: int
    "``linear_conv_kernel_dim``: taps of the short convolution."

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def weights(self, hidden: int) -> int:
        """Weights of one layer: in and out projections, gate, decay and its bias, convolution, norm."""
        value = self.value_heads * self.value_dim
        projections = hidden * (self.conv_width + value + 2 * self.value_heads) + value * hidden
        return projections + self.conv_width * self.conv_kernel + 2 * self.value_heads + self.value_dim

    @property
    def state_bytes(self) -> int:
        """State of one sequence in all layers: matrices in 32 bits, the convolution's past in 16.

        vLLM 0.32 `gated_delta_net_state_shape`; ``mamba_ssm_dtype`` of Qwen3.5 is float32. Ranks share the heads.
        """
        matrices = self.value_heads * self.value_dim * self.key_dim * 4
        return self.layers * (matrices + self.conv_width * (self.conv_kernel - 1) * 2)
