"""From blocks to numbers: every score is computed once, every figure reads from that."""
