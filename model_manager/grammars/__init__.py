"""Which constraints exist, what they cost, and their grammars over a tokenizer. Knows no sequence; needs no torch."""
