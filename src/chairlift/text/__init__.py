"""Between characters and token ids: tokenizer, chat template, incremental detokenisation, stop strings."""
