"""The OpenAI-compatible API: schemas, prompts, responses, streams."""
