"""The grammar behind the embedded tasks and encoder, and the rows and text it makes."""
