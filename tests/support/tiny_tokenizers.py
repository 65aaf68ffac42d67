"""Tokenizers that fit on a page, as model files would describe them, so that every id can be checked by hand."""

from chairlift.core.types import TokenizerSource
from chairlift.text.alphabet import byte_level_alphabet

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SPECIALS = ("<s>", "<|im_start|>", "<|im_end|>")
_MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġ Ġ", "1 2", "Ã ©")


def byte_level(
    *,
    pre: str = "gpt-2",
    add_bos: bool | None = False,
    merges: tuple[str, ...] = _MERGES,
    templates: dict[str, str] | None = None,
) -> TokenizerSource:
    """BPE over bytes: 0 to 2 are control tokens, 3 is `<tool>`, defined by the user, then come the bytes and the merges."""
    joined = tuple(merge.replace(" ", "") for merge in _MERGES)
    tokens = (*_SPECIALS, "<tool>", *byte_level_alphabet(), *joined)
    return TokenizerSource(
        kind="bpe",
        tokens=tokens,
        types=(3, 3, 3, 4, *[1] * (256 + len(joined))),
        merges=merges,
        pre=pre,
        bos_id=0,
        eos_ids=(2,),
        add_bos=add_bos,
        templates={"default": CHATML} if templates is None else templates,
    )


PIECES = ("▁", "a", "b", "c", "h", "e", "l", "o", "bc", "ab", "▁a", "he", "ll", "hell", "hello", "▁hello")
"""In the order of their scores, the best last."""


def sentencepiece(
    *, add_space_prefix: bool | None = False, add_bos: bool | None = None, templates: dict[str, str] | None = None
) -> TokenizerSource:
    """Pieces with scores: 0 is unknown, 1 and 2 are BOS and EOS, 3 is two spaces (user-defined), then bytes and pieces."""
    tokens = ("<unk>", "<s>", "</s>", "  ", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES)
    return TokenizerSource(
        kind="sentencepiece",
        tokens=tokens,
        types=(2, 3, 3, 4, *[6] * 256, *[1] * len(PIECES)),
        scores=(*[0.0] * 260, *(float(place) for place in range(len(PIECES)))),
        bos_id=1,
        unk_id=0,
        eos_ids=(2,),
        add_bos=add_bos,
        add_space_prefix=add_space_prefix,
        templates=templates or {},
    )
