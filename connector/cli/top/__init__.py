"""`ledger top`: a live view of a broker in the terminal."""
