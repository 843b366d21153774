"""The grammar behind the embedded tasks and the embedded encoder, and the rows and text generated from it."""
