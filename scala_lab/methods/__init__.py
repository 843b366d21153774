"""How a micro-batch becomes a gradient: step functions, and the recipes that name them with an optimizer."""
