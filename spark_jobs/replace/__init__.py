"""Replace: captures are decoded again and their rows are swapped, beside a running fleet."""
