"""Make a small Llama-shaped model folder without a network: config.json and a tokenizer, no weights.

    python make_model.py OUT

vLLM draws the weights itself (`--load-format dummy`). 79 million parameters: a decode step takes about 10 ms on one CPU
core, far more than the front end, and the whole model far less than a step of a real one. Run by the python of a vLLM
environment (`tests/vllm`); the tokenizer is trained on the standard library, the only text that is surely there.
"""

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY, LONGEST = 768, 12, 12, 4, 2048, 2048, 4096
SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    tokenizer.train([str(path) for path in texts], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    parts = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": LONGEST,
            "clean_up_tokenization_spaces": False,
            **SPECIAL,
        },
        "special_tokens_map.json": SPECIAL,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HIDDEN // HEADS,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": LONGEST,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "attention_bias": False,
            "mlp_bias": False,
        },
    }
    for name, content in parts.items():
        (folder / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
