"""Small random models of many classes of transformers, and what capture and intervene support of
each.
"""

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

WIDTHS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_TEXT = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = {"num_key_value_heads": 2}
_SEQ = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4},
    **{
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "decoder_start_token_id": 1,
    },
}
_T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 1,
}
_IMAGE = {"image_size": 8, "patch_size": 4, "num_channels": 3}
_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}


class Case(NamedTuple):
    """A class of transformers, and the settings of its small model."""

    config: str
    model: str
    changes: dict[str, Any]
    inputs: str = "text"


def _texts(*names: str, **changes: Any) -> list[Case]:
    settings = {**_TEXT, **WIDTHS, **changes}
    return [Case(f"{name}Config", f"{name}Model", settings) for name in names]


def _sequences(*names: str, **changes: Any) -> list[Case]:
    return [
        Case(f"{name}Config", f"{name}Model", {**_TEXT, **_SEQ, **changes}, "pair")
        for name in names
    ]


def _images(*names: str, **changes: Any) -> list[Case]:
    return [
        Case(f"{name}Config", f"{name}Model", {**WIDTHS, **_IMAGE, **changes}, "image")
        for name in names
    ]


CASES = [
    *_texts(
        "Llama",
        "Mistral",
        "Qwen2",
        "Phi3",
        "Gemma",
        "Gemma2",
        "Qwen3",
        "SmolLM3",
        "Olmo",
        "Olmo2",
        **_GROUPED,
    ),
    *_texts(
        "Olmo3", "Cohere", "Cohere2", "Granite", "Starcoder2", "StableLm", "Glm", "Glm4", **_GROUPED
    ),
    *_texts("SeedOss", "Exaone4", "Arcee", "Ernie4_5", "Apertus", **_GROUPED),
    *_texts("Gemma3Text", "NanoChat", "Nemotron", "BitNet", "VaultGemma", "Cwm", **_GROUPED),
    *_texts("Mixtral", "GptOss", num_local_experts=4, num_experts_per_tok=2, **_GROUPED),
    *_texts("Qwen2Moe", "Qwen3Moe", num_experts=4, **_EXPERTS, **_GROUPED),
    *_texts("Olmoe", num_experts=4, num_experts_per_tok=2, **_GROUPED),
    *_texts("GPTNeoX", "Phi", "Persimmon", "GPTNeoXJapanese"),
    *_texts(
        "Bert", "Roberta", "Electra", "Ernie", "Camembert", "XLMRoberta", "RobertaPreLayerNorm"
    ),
    *_texts(
        "Data2VecText", "MegatronBert", "XLMRobertaXL", "RoCBert", "ModernBert", "Esm", "LayoutLM"
    ),
    *_texts(
        "Splinter", "MobileBert", "Albert", "ConvBert", "NomicBert", "JinaEmbeddingsV3", "EuroBert"
    ),
    Case("GPT2Config", "GPT2Model", {**_TEXT, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    Case("GPTBigCodeConfig", "GPTBigCodeModel", {**_TEXT, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    Case("BioGptConfig", "BioGptModel", {**_TEXT, **WIDTHS}),
    Case("OPTConfig", "OPTModel", {**_TEXT, **WIDTHS, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    Case(
        "XGLMConfig",
        "XGLMModel",
        {**_TEXT, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    ),
    Case(
        "DistilBertConfig",
        "DistilBertModel",
        {**_TEXT, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    ),
    *_sequences(
        "Bart",
        "MBart",
        "Pegasus",
        "Marian",
        "Blenderbot",
        "BlenderbotSmall",
        "M2M100",
        "PLBart",
        "PegasusX",
    ),
    Case("T5Config", "T5Model", {**_TEXT, **_T5}, "pair"),
    Case("MT5Config", "MT5Model", {**_TEXT, **_T5}, "pair"),
    Case("UMT5Config", "UMT5Model", {**_TEXT, **_T5}, "pair"),
    *_images("ViT", "DeiT", "ViTMSN", "IJepa", "Dinov2", "Dinov2WithRegisters", "DINOv3ViT"),
    *_images("SiglipVision", "CLIPVision", "Beit", "Data2VecVision"),
]


SITES = ("weights", "heads", "attention", "ffn", "residual", "residual_between")
_SUMS = ("attention", "ffn", "residual_between")
_INSIDE = ("heads", *_SUMS)
_PARALLEL = "attention and ffn are parallel"
_OTHER = "its attention does not call the interface"
_NESTED = "the additions are in submodules"
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(
        ("CohereModel", "Cohere2Model", "GPTNeoXModel", "PhiModel"), (SITES[5:], _PARALLEL)
    ),
    **dict.fromkeys(
        ("RobertaPreLayerNormModel", "XLMRobertaXLModel", "EsmModel"), (_INSIDE, _NESTED)
    ),
    "BitNetModel": (("heads",), "a norm stands between the heads and their projection"),
    "AlbertModel": (
        _INSIDE,
        "its layers are lists of one shared block, in which no addition is found",
    ),
    "MobileBertModel": (_SUMS, "a bottleneck and four networks in a block"),
    "BeitModel": (_SUMS, "its parts are multiplied by parameters of the block"),
    **dict.fromkeys(
        (
            "GPTNeoXJapaneseModel",
            "MegatronBertModel",
            "ConvBertModel",
            "XGLMModel",
            "Data2VecVisionModel",
        ),
        (SITES, _OTHER),
    ),
}
"""The sites of :data:`SITES` that are refused of a class, and why."""


def build(
    case: Case, dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model of the class, and inputs for it."""
    config = getattr(transformers, case.config)(**case.changes)
    torch.manual_seed(0)
    model = getattr(transformers, case.model)(config).eval().to(dtype)
    tokens = torch.randint(3, 50, (2, 9))
    inputs = {"input_ids": tokens}
    if case.inputs == "pair":
        inputs["decoder_input_ids"] = torch.randint(3, 50, (2, 6))
    elif case.inputs == "image":
        inputs = {"pixel_values": torch.randn(2, 3, 8, 8, dtype=dtype)}
    return model, inputs


def table() -> str:
    """The rows of the table in docs/reference/sites.md."""
    groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for case in CASES:
        groups.setdefault(REFUSED.get(case.model, ((), "")), []).append(
            case.model.removesuffix("Model")
        )
    rows = ["| classes | refused | why |", "|---|---|---|"]
    for (sites, why), names in groups.items():
        rows.append(
            f"| {', '.join(names)} | {'all' if sites == SITES else ', '.join(sites) or 'none'} | "
            f"{why} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
