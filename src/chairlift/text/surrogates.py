"""Text as clients may send it, which need not be valid Unicode. Knows no messages and no tokenizer."""


def has_lone_surrogates(text: str) -> bool:
    """Whether `text` has half of a surrogate pair, as JSON's escapes can spell it: it is no valid Unicode then."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def well_formed(text: str) -> str:
    """`text` with each unpaired surrogate replaced by U+FFFD."""
    if not has_lone_surrogates(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
