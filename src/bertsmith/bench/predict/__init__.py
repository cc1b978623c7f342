"""How fast models answer: each of our backends beside transformers' pipeline and the engines used directly."""
