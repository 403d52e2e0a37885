"""The model: its layers, entry formats, page layouts and the bytes that follow."""
