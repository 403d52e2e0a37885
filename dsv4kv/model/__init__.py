"""What the model is: its layers, entry formats, page layouts and the bytes that follow."""
