"""Creates constraints from schemas, regular expressions and grammars, and compiles them."""
