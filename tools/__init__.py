"""Programs for people who work on pcaplake; the package itself needs none of them."""
