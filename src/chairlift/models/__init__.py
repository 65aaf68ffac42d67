"""Descriptions and weights of models: GGUF files, Hugging Face folders, and where to fetch them."""
