"""Programs for developers of pcaplake. The package itself does not use them."""
